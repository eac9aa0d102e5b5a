//! Connections that only receive, as server-sent events (WHATWG HTML §9.2) or as lines of JSON.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tracing::warn;
use wireloom::{Body, BodySender, PreparedMessage, Response};

use super::clean_up::CleanUp;
use crate::client::{Client, Format};
use crate::node::{Node, Origin};
use crate::outbox::Taken;
use crate::protocol::{ConnectRequest, Disconnect, DisconnectPush, Push, Reply};
use crate::session::Session;

/// How long a client may take to receive the reason when the connection ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The response to a client that only receives: a body that lasts as long as the connection.
pub(crate) fn event_stream(
    node: Arc<Node>,
    format: Format,
    request: ConnectRequest,
    origin: Box<Origin>,
) -> Response {
    let client = match node.accept(format, origin.peer) {
        Ok(client) => client,
        Err(reason) => return Response::text(503, format!("{}\n", reason.reason())),
    };
    let (mut body, stream) = Body::channel();
    tokio::spawn(async move {
        let mut clean_up = CleanUp::new(&node, &client);
        let session = Session::new(node.clone(), client.clone(), origin);
        let reason = run(&node, &client, session, request, &mut body).await;
        // The client may not read. Others should see it leave at once.
        let sending = tokio::time::timeout(CLOSE_TIMEOUT, send_reason(&mut body, format, &reason));
        let _ = tokio::join!(sending, clean_up.leave(reason.clone()));
        drop(body);
        clean_up.forget().await;
    });
    let content_type = match format {
        Format::HttpStream => "application/json",
        _ => "text/event-stream",
    };
    let response = Response::new(200).with_body(content_type, stream);
    response.with_header("Cache-Control", "no-cache").unwrap_or_else(Response::from)
}

async fn run(
    node: &Node,
    client: &Client,
    mut session: Session,
    request: ConnectRequest,
    body: &mut BodySender,
) -> Disconnect {
    if let Err(reason) = session.connect_one_way(request).await {
        client.outbox.end(reason);
    }
    let mut messages = Vec::new();
    loop {
        let deadline = node.clock.instant(session.poll_timeout());
        tokio::select! {
            biased;
            taken = poll_fn(|cx| client.outbox.poll_take(cx, &mut messages)) => match taken {
                Taken::Messages => {
                    if let Err(reason) = send(node, client, body, joined(&mut messages)).await {
                        return reason;
                    }
                }
                Taken::End(reason) => return reason,
            },
            () = body.closed() => return Disconnect::ConnectionClosed,
            () = tokio::time::sleep_until(deadline) => {
                session.handle_timeout();
                if session.needs_renewal() {
                    session.renew().await;
                }
            }
        }
    }
}

/// Sends events, unless the client is too slow. If the connection is being ended, it does not wait for the client to
/// read.
async fn send(node: &Node, client: &Client, body: &mut BodySender, events: Bytes) -> Result<(), Disconnect> {
    let queue_time_max = node.settings().config.client.queue_time_max;
    let sent = tokio::select! {
        biased;
        sent = tokio::time::timeout(queue_time_max, body.send(events)) => sent,
        () = poll_fn(|cx| client.outbox.poll_ended(cx)) => return Ok(()),
    };
    match sent {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Disconnect::ConnectionClosed),
        Err(_) => {
            warn!(
                reason = "slow",
                client = client.id,
                user = client.user(),
                "client evicted: it does not read"
            );
            Err(Disconnect::Slow)
        }
    }
}

/// Sends the reason as the last push, because streams have no close code.
async fn send_reason(body: &mut BodySender, format: Format, reason: &Disconnect) {
    let disconnect = DisconnectPush {
        code: reason.code().into(),
        reason: reason.reason().into(),
        reconnect: reason.allows_reconnect(),
    };
    let push = Push { disconnect: Some(disconnect), ..Push::default() };
    if let Some(event) = crate::client::one_way(format, &Reply { push: Some(push), ..Reply::default() }) {
        // The client may have disconnected.
        let _ = body.send(event.as_bytes().to_vec()).await;
    }
}

/// All messages as one chunk.
fn joined(messages: &mut Vec<PreparedMessage>) -> Bytes {
    messages.drain(..).flat_map(|message| message.as_bytes().to_vec()).collect()
}
