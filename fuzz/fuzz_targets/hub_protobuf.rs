//! Any bytes as a batch of Protobuf commands: whatever is decoded is decoded again from what it is encoded to, and its payloads
//! make replies that JSON clients can read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use wireloom_hub::protocol::{Commands, Encoding, Publication, Push, Reply, encode_reply};

fuzz_target!(|bytes: &[u8]| {
    for command in Commands::new(Encoding::Protobuf, bytes.to_vec().into()) {
        let Ok(command) = command else { return };
        let encoded = command.encode_length_delimited_to_vec();
        let again: Vec<_> = Commands::new(Encoding::Protobuf, encoded.into()).collect();
        assert_eq!(again, [Ok(command.clone())]);
        if let Some(publish) = command.publish {
            let publication = Some(Publication { data: publish.data, ..Publication::default() });
            let push = Some(Push { channel: publish.channel, publication, ..Push::default() });
            let reply = Reply { push, ..Reply::default() };
            let json = encode_reply(Encoding::Json, &reply);
            serde_json::from_slice::<serde_json::Value>(&json).expect("JSON");
        }
    }
});
