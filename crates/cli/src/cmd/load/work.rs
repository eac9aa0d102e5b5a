//! The work of the connections, the same in each run.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::payload::Payloads;
use super::recording::Recording;
use super::script::Script;
use crate::args::{Load, Scenario};

/// The task of the connections, the same in each run.
pub(super) struct Work {
    pub(super) scenario: Scenario,
    /// The number of publishers in a room. In other scenarios all connections send.
    pub(super) publishers: usize,
    /// Messages of a connection that wait for their answers in the closed loop.
    pub(super) pipeline: usize,
    pub(super) script: Script,
    pub(super) recording: Recording,
    /// Of requests.
    pub(super) method: String,
    pub(super) has_content: bool,
    pub(super) checks: bool,
    payloads: Mutex<Payloads>,
}

impl Work {
    /// # Errors
    /// A file that cannot be used.
    pub(super) fn new(args: &Load) -> Result<Self, String> {
        let (scenario, is_text) = (args.scenario(), !args.payload.binary);
        let payloads = match &args.payload.messages {
            Some(path) => Payloads::from_file(path, is_text)?,
            None => Payloads::generated(args.sizes(), is_text),
        };
        let has_content = args.payload.size.is_some() || args.payload.messages.is_some();
        let script = args.script.as_deref().map(Script::from_file).transpose()?;
        let speed = args.speed.unwrap_or_default();
        let recording = args.replay.as_deref().map(|path| Recording::from_file(path, speed)).transpose()?;
        let publishers = match scenario {
            Scenario::Rooms => args.volume.publishers.unwrap_or(1),
            _ => args.volume.connections(),
        };
        let method = args.payload.method.clone();
        Ok(Self {
            scenario,
            publishers,
            pipeline: args.volume.pipeline.unwrap_or(1),
            script: script.unwrap_or_default(),
            recording: recording.unwrap_or_default(),
            method: method.unwrap_or_else(|| if has_content { "POST" } else { "GET" }.to_owned()),
            has_content,
            checks: args.payload.check,
            payloads: Mutex::new(payloads),
        })
    }

    pub(super) fn payloads(&self) -> MutexGuard<'_, Payloads> {
        self.payloads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
