//! Any bytes as the body of each method of the server API: a hub with every feature answers, and its histories stay bounded.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};
use wireloom_hub::fuzzing::call;
use wireloom_hub::{Hub, HubConfig};

const CONFIG: &str = r#"
[channel]
history_size = 3
history_ttl = "1h"
presence = true
join_leave = true

[[namespace]]
name = "n"
"#;

const METHODS: [&str; 14] = [
    "publish",
    "broadcast",
    "subscribe",
    "unsubscribe",
    "disconnect",
    "refresh",
    "presence",
    "presence_stats",
    "history",
    "history_remove",
    "channels",
    "info",
    "batch",
    "other",
];

/// A publication of the history is at most as long as the longest input, and JSON can escape each byte.
const RESULT_LEN_MAX: usize = 1 << 20;

static HUB: LazyLock<(Runtime, Hub)> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let hub = Hub::builder().config(HubConfig::from_toml(CONFIG).expect("a configuration"));
    (runtime, hub.build().expect("a hub"))
});

fuzz_target!(|bytes: &[u8]| {
    let Some((method, body)) = bytes.split_first() else { return };
    let (runtime, hub) = &*HUB;
    let method = METHODS[usize::from(*method) % METHODS.len()];
    let len = runtime.block_on(call(hub, method, body));
    assert!(method != "history" || len <= RESULT_LEN_MAX, "a history of {len} bytes");
});
