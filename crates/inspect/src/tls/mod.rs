//! TLS below the session, decrypted where the secrets are known.

use crate::entry::Context;
use crate::session::{Assume, Session, looks_like_request};

#[derive(Debug, Default)]
pub(crate) struct KeyLog;

impl KeyLog {
    pub(crate) fn add(&mut self, _text: &[u8]) {}
}

#[derive(Debug)]
pub(crate) struct Transport {
    session: Session,
}

impl Transport {
    pub(crate) fn new(assume: Assume) -> Self {
        Self { session: Session::new(assume) }
    }

    pub(crate) fn sent_by_client(bytes: &[u8]) -> Option<bool> {
        match bytes {
            [0x16, 3, _, _, _, 1, ..] => Some(true),
            [0x16, 3, _, _, _, 2, ..] => Some(false),
            _ if bytes.starts_with(b"HTTP/1.") => Some(false),
            _ if bytes.len() > 3 && looks_like_request(bytes) => Some(true),
            _ => None,
        }
    }

    pub(crate) fn handle(&mut self, context: &mut Context<'_>, _keys: &KeyLog, bytes: &[u8]) {
        self.session.handle(context, bytes);
    }
    pub(crate) fn gap(&mut self, context: &mut Context<'_>, _keys: &KeyLog, len: u64) {
        self.session.gap(context, len);
    }
    pub(crate) fn finish(&mut self, context: &mut Context<'_>, _keys: &KeyLog) {
        self.session.finish(context);
    }
}
