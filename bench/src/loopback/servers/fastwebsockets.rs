//! fastwebsockets, upgraded by hyper as in its example.

use fastwebsockets::{FragmentCollector, OpCode, WebSocketError, upgrade};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

pub(super) async fn echo(stream: TcpStream) {
    let service = service_fn(|mut request| async move {
        let (response, upgrade) = upgrade::upgrade(&mut request)?;
        tokio::spawn(tokio::task::unconstrained(run(upgrade)));
        Ok::<_, WebSocketError>(response)
    });
    // How the connection ends is the client's choice.
    _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}

async fn run(upgrade: upgrade::UpgradeFut) -> Result<(), WebSocketError> {
    let mut socket = FragmentCollector::new(upgrade.await?);
    loop {
        let frame = socket.read_frame().await?;
        match frame.opcode {
            OpCode::Close => return Ok(()),
            OpCode::Text | OpCode::Binary => socket.write_frame(frame).await?,
            _ => {}
        }
    }
}
