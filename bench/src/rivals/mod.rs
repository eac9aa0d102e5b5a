//! The rivals, each configured for speed as its documentation advises, with its own run-time detection of SIMD. All of
//! them check UTF-8, masking and fragmentation; their limits are above the largest message.

pub(crate) mod fastwebsockets;
pub(crate) mod h2;
pub(crate) mod nago_wss;
pub(crate) mod nghttp2;
pub(crate) mod sockudo_ws;
pub(crate) mod tokio_websockets;
pub(crate) mod tungstenite;
pub(crate) mod yawc;

/// Above the largest message of any workload, which has 16 MiB.
const MESSAGE_LEN_MAX: usize = 64 << 20;

/// A rival's name with its version from the lock file.
pub(crate) fn with_version(package: &str) -> String {
    let lock = include_str!("../../../Cargo.lock");
    let mut lines = lock.lines().skip_while(|line| *line != format!("name = \"{package}\""));
    let version = lines.nth(1).and_then(|line| line.strip_prefix("version = "));
    format!("{package} {}", version.unwrap_or("?").trim_matches('"'))
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_come_from_the_lock_file() {
        assert!(super::with_version("tungstenite").starts_with("tungstenite 0."));
    }
}
