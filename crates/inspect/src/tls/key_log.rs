//! Secrets in the format that NSS defined for SSLKEYLOGFILE: `LABEL client_random secret`, in hexadecimal.

use std::collections::HashMap;

use crate::limits::SECRETS_MAX;

/// The longest secret, in bytes: the output of SHA-512.
const SECRET_LEN_MAX: usize = 64;

/// The secrets of sessions, by the random of their ClientHello.
#[derive(Clone, Default)]
pub(crate) struct KeyLog {
    sessions: HashMap<[u8; 32], Secrets>,
}

/// The secrets of a session.
#[derive(Clone, Default)]
pub(crate) struct Secrets {
    /// TLS 1.2: the master secret.
    pub(super) master: Option<Vec<u8>>,
    /// TLS 1.3, in the order of their use: early data, handshake, application; by direction.
    pub(super) traffic: [[Option<Vec<u8>>; 3]; 2],
}

// Secrets are not printed.
impl std::fmt::Debug for KeyLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyLog of {} sessions", self.sessions.len())
    }
}

impl KeyLog {
    /// Adds the secrets of `text`. Other lines are ignored.
    pub(crate) fn add(&mut self, text: &[u8]) {
        text.split(|&byte| byte == b'\n').for_each(|line| {
            let _ = self.add_line(line);
        });
    }

    fn add_line(&mut self, line: &[u8]) -> Option<()> {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let (label, random, secret) = (words.next()?, words.next()?, words.next()?);
        let random: [u8; 32] = hex(random)?.try_into().ok()?;
        let secret = hex(secret).filter(|secret| secret.len() <= SECRET_LEN_MAX)?;
        if self.sessions.len() >= SECRETS_MAX && !self.sessions.contains_key(&random) {
            return None;
        }
        let (side, phase) = match label {
            b"CLIENT_RANDOM" => {
                self.sessions.entry(random).or_default().master = Some(secret);
                return Some(());
            }
            b"CLIENT_EARLY_TRAFFIC_SECRET" => (0, 0),
            b"CLIENT_HANDSHAKE_TRAFFIC_SECRET" => (0, 1),
            b"CLIENT_TRAFFIC_SECRET_0" => (0, 2),
            b"SERVER_HANDSHAKE_TRAFFIC_SECRET" => (1, 1),
            b"SERVER_TRAFFIC_SECRET_0" => (1, 2),
            _ => return None,
        };
        self.sessions.entry(random).or_default().traffic[side][phase] = Some(secret);
        Some(())
    }

    pub(super) fn get(&self, random: &[u8; 32]) -> Option<&Secrets> {
        self.sessions.get(random)
    }
}

fn hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    if !digits.len().is_multiple_of(2) || digits.len() > 2 * SECRET_LEN_MAX {
        return None;
    }
    digits.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lines_and_ignores_others() {
        let mut log = KeyLog::default();
        let random = "11".repeat(32);
        log.add(b"# comment\n\nnonsense\nCLIENT_RANDOM 00 00\n");
        log.add(format!("CLIENT_RANDOM {random} {}\r\n", "ab".repeat(48)).as_bytes());
        log.add(format!("SERVER_TRAFFIC_SECRET_0 {random} {}", "cd".repeat(32)).as_bytes());
        assert_eq!(log.sessions.len(), 1);
        let secrets = log.get(&[0x11; 32]).unwrap();
        assert_eq!(secrets.master.as_deref(), Some(&[0xab; 48][..]));
        assert_eq!(secrets.traffic[1][2].as_deref(), Some(&[0xcd; 32][..]));
    }
}
