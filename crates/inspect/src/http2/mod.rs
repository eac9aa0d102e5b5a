//! HTTP/2
use crate::entry::Context;

#[derive(Debug)]
pub(crate) struct Http2;
impl Http2 {
    pub(crate) fn new(_from_start: bool) -> Self {
        Self
    }
    pub(crate) fn is_plausible(_bytes: &[u8]) -> bool {
        false
    }
    pub(crate) fn handle(&mut self, _context: &mut Context<'_>, _bytes: &[u8]) {}
    pub(crate) fn gap(&mut self, _context: &mut Context<'_>, _len: u64) {}
    pub(crate) fn finish(&mut self, _context: &mut Context<'_>) {}
}
