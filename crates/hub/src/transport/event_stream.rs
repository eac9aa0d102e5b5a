//! Connections that only receive, as server-sent events (WHATWG HTML §9.2).

use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use tracing::warn;
use wireloom::{Body, BodySender, PreparedMessage, Response};

use super::leaving::Leaving;
use crate::client::{Client, Format};
use crate::node::{Node, Origin};
use crate::outbox::Taken;
use crate::protocol::{ConnectRequest, Disconnect, DisconnectPush, Push, Reply};
use crate::session::Session;

/// The answer to a client that wants events, which go on until it leaves.
pub(crate) fn event_stream(node: Arc<Node>, request: ConnectRequest, origin: Origin) -> Response {
    let client = match node.accept(Format::EventStream, origin.peer) {
        Ok(client) => client,
        Err(reason) => return Response::text(503, format!("{}\n", reason.reason())),
    };
    let (body, stream) = Body::channel();
    tokio::spawn(async move {
        let mut leaving = Leaving::new(&node, &client);
        let session = Session::new(node.clone(), client.clone(), origin);
        let reason = run(&node, &client, session, request, body).await;
        leaving.leave(reason).await;
        leaving.forget().await;
    });
    let response = Response::new(200).with_body("text/event-stream", stream);
    response.with_header("Cache-Control", "no-cache").unwrap_or_else(Response::from)
}

async fn run(
    node: &Node,
    client: &Client,
    mut session: Session,
    request: ConnectRequest,
    mut body: BodySender,
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
                    let queue_time_max = node.settings().config.client.queue_time_max;
                    match tokio::time::timeout(queue_time_max, body.send(joined(&mut messages))).await {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) => return Disconnect::ConnectionClosed,
                        Err(_) => {
                            node.metrics.evicted_slow.increment();
                            warn!(reason = "slow", client = client.id, user = client.user(), "client evicted: it does not read");
                            return Disconnect::Slow;
                        }
                    }
                }
                Taken::End(reason) => {
                    // Events have no close code: the last one has the reason.
                    let disconnect =
                        DisconnectPush { code: reason.code().into(), reason: reason.reason().into(), reconnect: reason.allows_reconnect() };
                    let push = Push { disconnect: Some(disconnect), ..Push::default() };
                    if let Some(event) = crate::client::event(&Reply { push: Some(push), ..Reply::default() }) {
                        let _ = body.send(event.as_bytes().to_vec()).await;
                    }
                    return reason;
                }
            },
            () = body.closed() => return Disconnect::ConnectionClosed,
            () = tokio::time::sleep_until(deadline) => session.handle_timeout(),
        }
    }
}

/// All messages as one chunk.
fn joined(messages: &mut Vec<PreparedMessage>) -> Bytes {
    messages.drain(..).flat_map(|message| message.as_bytes().to_vec()).collect()
}
