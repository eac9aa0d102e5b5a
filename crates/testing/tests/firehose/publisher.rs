use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wireloom::{CloseCode, PreparedMessage, Request, Response, Sender, WebSocket};
use zstd::bulk::Compressor;

struct Publisher {
    dictionary: Vec<u8>,
    compressor: Compressor<'static>,
    /// Subscribers that know the dictionary, and those that do not.
    compressed: Vec<Sender>,
    plain: Vec<Sender>,
}

impl Publisher {
    /// `samples` are events of the past, some thousands of them.
    fn new(samples: &[Vec<u8>]) -> std::io::Result<Self> {
        let dictionary = zstd::dict::from_samples(samples, 64 << 10)?;
        let compressor = Compressor::with_dictionary(1, &dictionary)?;
        Ok(Self { dictionary, compressor, compressed: Vec::new(), plain: Vec::new() })
    }

    fn id(&self) -> String {
        let id = self.dictionary.get(4..8).and_then(|id| id.try_into().ok()).unwrap_or_default();
        u32::from_le_bytes(id).to_string()
    }

    fn publish(&mut self, event: &str) -> std::io::Result<()> {
        let compressed = PreparedMessage::binary(&self.compressor.compress(event.as_bytes())?);
        let plain = PreparedMessage::text(event);
        self.compressed.retain_mut(|sender| deliver(sender, &compressed));
        self.plain.retain_mut(|sender| deliver(sender, &plain));
        Ok(())
    }
}

/// A subscriber whose queue is full is disconnected; it comes back with its cursor.
fn deliver(sender: &mut Sender, event: &PreparedMessage) -> bool {
    let sent = sender.try_send(event).is_ok_and(|sent| sent);
    if !sent {
        // `join` still holds the connection. This fails only if it is closing already.
        let _ = sender.close_after((Duration::ZERO, CloseCode::TRY_AGAIN_LATER));
    }
    sent
}

async fn handle(request: Request, publisher: Arc<Mutex<Publisher>>) -> Response {
    let (dictionary, id) = {
        let publisher = publisher.lock().unwrap_or_else(PoisonError::into_inner);
        (publisher.dictionary.clone(), publisher.id())
    };
    if request.path() == "/dictionary" {
        return Response::new(200).with_body("application/octet-stream", dictionary);
    }
    let wanted = request.query_param("zstdDictionary");
    if wanted.is_some_and(|wanted| wanted != id) {
        return Response::text(400, "this dictionary is not known; see /dictionary\n");
    }
    let is_compressed = wanted.is_some();
    match request.websocket() {
        Ok(upgrade) => upgrade.on_open(move |socket| join(socket, publisher, is_compressed)),
        Err(refusal) => refusal,
    }
}

async fn join(socket: WebSocket, publisher: Arc<Mutex<Publisher>>, is_compressed: bool) {
    let (sender, mut receiver) = socket.split();
    {
        let mut publisher = publisher.lock().unwrap_or_else(PoisonError::into_inner);
        if is_compressed { publisher.compressed.push(sender) } else { publisher.plain.push(sender) }
    }
    // Answers pings and closes, until the connection ends.
    while let Ok(Some(_)) = receiver.recv().await {}
}
