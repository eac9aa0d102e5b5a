//! Calls between the nodes of a cluster.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::json;
use tracing::warn;

use super::Node;
use crate::calls::{ANSWER_TIMEOUT, Answer, Call, ChannelList, Message, NodeInfo, Payload, is_name};
use crate::concurrently::concurrently;
use crate::engine::EngineError;
use crate::hooks::copied;
use crate::pattern::matches;
use crate::sessions::Delivered;

/// The maximum number of nodes that are asked at the same time.
const CALLS_MAX: usize = 64;

/// The same for lists of channels: each may be as long as a reply.
const LISTS_MAX: usize = 4;

impl Node {
    /// Passes commands to a session, which another node may have.
    pub(crate) async fn emulate(
        &self,
        node: &str,
        session: &str,
        commands: Bytes,
    ) -> Result<Delivered, EngineError> {
        if node.is_empty() || node == self.name {
            return Ok(self.sessions.send(session, &commands));
        }
        // The answer arrives over the engine, whether or not this node has clients.
        self.start();
        // A node that has just started does not know the others yet.
        let is_new = self.clock.elapsed() < ANSWER_TIMEOUT;
        // The call keeps the id of the session, too.
        if !is_name(node)
            || !is_name(session)
            || !(is_new || self.engine.peers().iter().any(|peer| peer == node))
        {
            return Ok(Delivered::Unknown);
        }
        let Some(_permit) = self.calls.permit_for_client(commands.len()) else {
            return Err(EngineError::Unavailable("too many calls to other nodes wait".into()));
        };
        let call = Call::Emulate { session: session.to_owned(), commands: Payload(copied(commands)) };
        match self.call(node, call).await? {
            Answer::Emulated(delivered) => Ok(delivered),
            other => Err(unexpected(node, &other)),
        }
    }

    /// Handles what another node has sent.
    pub(super) fn handle_from_node(&self, message: &[u8]) {
        match Message::decode(message) {
            Some(Message::Call { id, from, call }) => {
                // Commands keep their order; what takes longer is left to the task.
                let call = match call {
                    Call::Emulate { session, commands } => {
                        Ok(Answer::Emulated(self.sessions.send(&session, &commands.0)))
                    }
                    other => Err(other),
                };
                let Some(node) = self.this.upgrade() else { return };
                self.spawn(async move {
                    let answer = call.unwrap_or_else(|call| node.answer(call));
                    let Err(error) = node.send_answer(&from, id, answer).await else { return };
                    warn!(node = from, %error, "a call of another node was not answered");
                    // The other node waits in vain if this fails, too.
                    let _ = node.send_answer(&from, id, Answer::Failed(error.to_string())).await;
                });
            }
            Some(Message::Answer { id, part, is_last, answer }) => {
                self.calls.answer(id, part, is_last, answer)
            }
            None => {}
        }
    }

    /// Asks another node.
    async fn call(&self, node: &str, call: Call) -> Result<Answer, EngineError> {
        let mut waiting = self.calls.begin();
        let message = Message::Call { id: waiting.id, from: self.name.clone(), call };
        let asking = async {
            self.engine.send_to_node(node, message.encode()).await?;
            (&mut waiting.answer).await.map_err(|error| EngineError::Unavailable(error.to_string()))
        };
        let silent = |_| EngineError::Unavailable(format!("node {node} does not answer"));
        tokio::time::timeout(ANSWER_TIMEOUT, asking).await.map_err(silent)?
    }

    /// Answers another node.
    fn answer(&self, call: Call) -> Answer {
        match call {
            Call::Emulate { session, commands } => {
                Answer::Emulated(self.sessions.send(&session, &commands.0))
            }
            Call::Channels { pattern, len_max } => {
                let list = self.channels_like(&pattern, len_max);
                list.map_or(Answer::TooMany, |list| Answer::Channels(list.into_channels()))
            }
            Call::Info => Answer::Info(self.info()),
        }
    }

    async fn send_answer(&self, node: &str, id: u64, answer: Answer) -> Result<(), EngineError> {
        for message in answer.into_messages(id) {
            self.engine.send_to_node(node, message.encode()).await?;
        }
        Ok(())
    }

    /// The channels of this node's clients whose names match, and the numbers of these clients; `None` if they are longer than this.
    fn channels_like(&self, pattern: &str, len_max: usize) -> Option<ChannelList> {
        let mut list = ChannelList::new(len_max);
        let mut channels = self.channels.list().filter(|(name, _)| matches(pattern, name));
        channels.all(|(name, clients)| list.add(&name, clients)).then_some(list)
    }

    fn info(&self) -> NodeInfo {
        NodeInfo {
            uid: self.name.clone(),
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            num_clients: self.clients_len(),
            num_users: self.users_len(),
            num_subs: self.channels.list().map(|(_, clients)| clients).sum(),
            num_channels: self.channels.len(),
            uptime: self.clock.elapsed().as_secs(),
        }
    }

    /// Asks other nodes.
    async fn ask(&self, peers: Vec<String>, call: &Call) -> Vec<(String, Result<Answer, EngineError>)> {
        self.start();
        let Some(node) = self.this.upgrade() else { return Vec::new() };
        let asked = peers.into_iter().map(|peer| {
            let (node, call) = (node.clone(), call.clone());
            async move {
                let answer = node.call(&peer, call).await;
                (peer, answer)
            }
        });
        concurrently(CALLS_MAX, asked).await
    }

    /// The channels of all nodes whose names match, and the numbers of their clients; `None` if they are longer than this, in bytes of a
    /// reply of the server API.
    ///
    /// # Errors
    /// A node does not answer.
    pub(crate) async fn cluster_channels(
        &self,
        pattern: &str,
        len_max: usize,
    ) -> Result<Option<BTreeMap<String, usize>>, EngineError> {
        let Some(mut all) = self.channels_like(pattern, len_max) else { return Ok(None) };
        let call = Call::Channels { pattern: pattern.to_owned(), len_max };
        for peers in self.engine.peers().chunks(LISTS_MAX) {
            for (node, answer) in self.ask(peers.to_vec(), &call).await {
                let has_room = match answer? {
                    Answer::Channels(channels) => {
                        channels.into_iter().all(|(name, clients)| all.add(&name, clients))
                    }
                    Answer::TooMany => false,
                    other => return Err(unexpected(&node, &other)),
                };
                if !has_room {
                    return Ok(None);
                }
            }
        }
        Ok(Some(all.into_channels()))
    }

    /// The figures of all nodes, this one first; of one that does not answer, the name alone.
    pub(crate) async fn cluster_info(&self) -> Vec<serde_json::Value> {
        let answers = self.ask(self.engine.peers(), &Call::Info).await;
        let peers = answers.into_iter().map(|(name, answer)| match answer {
            Ok(Answer::Info(info)) => json!(info),
            _ => json!({ "uid": name, "name": name }),
        });
        std::iter::once(json!(self.info())).chain(peers).collect()
    }
}

fn unexpected(node: &str, answer: &Answer) -> EngineError {
    match answer {
        Answer::Failed(reason) => EngineError::Unavailable(format!("node {node}: {reason}")),
        _ => EngineError::Unavailable(format!("node {node} gave another answer")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost::Message as _;

    use super::*;
    use crate::hub::Hub;
    use crate::protocol::EmulationRequest;

    #[tokio::test]
    async fn commands_for_other_nodes_wait_up_to_a_limit() {
        let hub = Hub::builder().build().unwrap();
        let node = &hub.0;
        let refusal = "too many calls to other nodes wait";
        let is_refused = async || {
            let result = node.emulate("other", "session", Bytes::new()).await;
            matches!(result, Err(EngineError::Unavailable(reason)) if reason == refusal)
        };
        let mut permits: Vec<_> = std::iter::from_fn(|| node.calls.permit_for_client(0)).collect();
        assert!(is_refused().await);
        permits.pop();
        assert!(!is_refused().await);
    }

    /// The body of a request, and whether anything keeps it.
    struct Body {
        bytes: Vec<u8>,
        _kept: Arc<()>,
    }

    impl AsRef<[u8]> for Body {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    #[tokio::test]
    async fn commands_that_wait_keep_nothing_else_of_their_request() {
        let hub = Hub::builder().build().unwrap();
        let node = &hub.0;
        let inbox = node.sessions.open(1_000);
        let session = inbox.id().to_string();
        let request = EmulationRequest { session, data: " ".into(), ..EmulationRequest::default() };
        let mut body = request.encode_to_vec();
        // An unknown field of 100,000 bytes, which have a length of three bytes.
        body.extend([15 << 3 | 2, 0xa0, 0x8d, 0x06]);
        body.resize(body.len() + 100_000, 0);
        let kept = Arc::new(());
        let body = Bytes::from_owner(Body { bytes: body, _kept: kept.clone() });
        let request = EmulationRequest::decode(body).unwrap();
        assert_eq!((request.data.len(), Arc::strong_count(&kept)), (1, 2));
        let delivered = node.emulate("", &request.session, request.data).await.unwrap();
        assert_eq!((delivered, Arc::strong_count(&kept)), (Delivered::Queued, 1));
    }
}
