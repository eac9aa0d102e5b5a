//! The parameters of permessage-deflate: offered, answered, checked (RFC 7692 §5, §7.1).
//!
//! It defines the meaning of each parameter in an offer and in an answer. The handshake parses `Sec-WebSocket-Extensions` (RFC 6455
//! §9.1).
//!
//! | parameter | in an offer | in the answer |
//! |---|---|---|
//! | `server_no_context_takeover` | demand; no value | the promise, also without a demand |
//! | `client_no_context_takeover` | hint; no value | demand, also without a hint |
//! | `server_max_window_bits` | demand; 8 to 15 | promise; at most the demanded value, also without a demand |
//! | `client_max_window_bits` | support, or a hint of 8 to 15 | demand, only if offered; 8 to 15 |

use alloc::string::String;
use core::fmt::{self, Write as _};

use super::{DeflateConfig, DeflateParams, NAME, WINDOW_BITS};
use crate::handshake::extensions::Extension;

const SERVER_NO_CONTEXT_TAKEOVER: &str = "server_no_context_takeover";
const CLIENT_NO_CONTEXT_TAKEOVER: &str = "client_no_context_takeover";
const SERVER_MAX_WINDOW_BITS: &str = "server_max_window_bits";
const CLIENT_MAX_WINDOW_BITS: &str = "client_max_window_bits";

/// An invalid answer of a server, for which the client fails the handshake (RFC 7692 §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NegotiationError {
    /// The answer names another extension.
    NotPermessageDeflate,
    /// A parameter that RFC 7692 does not define.
    UnknownParam,
    /// A parameter that occurs twice.
    DuplicateParam,
    /// A value that is malformed, out of range, missing, or present where none is allowed.
    InvalidValue,
    /// The server does not promise `server_no_context_takeover`, which was demanded (§7.1.1.1).
    ContextTakeoverNotAnswered,
    /// The server does not promise a window as small as was demanded (§7.1.2.1).
    WindowTooLarge,
}

impl fmt::Display for NegotiationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermessageDeflate => "the server answered with another extension",
            Self::UnknownParam => "the server answered with a parameter unknown to permessage-deflate",
            Self::DuplicateParam => "the server repeated a parameter of permessage-deflate",
            Self::InvalidValue => "the server gave a parameter of permessage-deflate an invalid value",
            Self::ContextTakeoverNotAnswered => "the server ignored the demand of server_no_context_takeover",
            Self::WindowTooLarge => "the server ignored the demand of server_max_window_bits",
        })
    }
}

impl core::error::Error for NegotiationError {}

/// The parameters of one offer or answer, each at most once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Parsed {
    server_no_context_takeover: bool,
    client_no_context_takeover: bool,
    server_max_window_bits: Option<u8>,
    /// The inner `None` is the parameter without a value, which only an offer may have.
    client_max_window_bits: Option<Option<u8>>,
}

/// RFC 7692 §7.1: declines an offer, or fails an answer, with an unknown parameter, an invalid value, or two parameters
/// of one name.
fn parse(extension: &Extension<'_>) -> Result<Parsed, NegotiationError> {
    let mut parsed = Parsed::default();
    for param in &extension.params {
        let value = param.value.as_deref();
        match param.name {
            SERVER_NO_CONTEXT_TAKEOVER => flag(&mut parsed.server_no_context_takeover, value)?,
            CLIENT_NO_CONTEXT_TAKEOVER => flag(&mut parsed.client_no_context_takeover, value)?,
            SERVER_MAX_WINDOW_BITS => {
                // RFC 7692 §7.1.2.1: "This parameter has a decimal integer value".
                let bits = window_bits(value.ok_or(NegotiationError::InvalidValue)?)?;
                once(&mut parsed.server_max_window_bits, bits)?;
            }
            CLIENT_MAX_WINDOW_BITS => {
                once(&mut parsed.client_max_window_bits, value.map(window_bits).transpose()?)?;
            }
            _ => return Err(NegotiationError::UnknownParam),
        }
    }
    Ok(parsed)
}

/// RFC 7692 §7.1.1: the flags have no value.
fn flag(seen: &mut bool, value: Option<&str>) -> Result<(), NegotiationError> {
    if value.is_some() {
        return Err(NegotiationError::InvalidValue);
    }
    if core::mem::replace(seen, true) { Err(NegotiationError::DuplicateParam) } else { Ok(()) }
}

fn once<T>(seen: &mut Option<T>, value: T) -> Result<(), NegotiationError> {
    if seen.replace(value).is_some() { Err(NegotiationError::DuplicateParam) } else { Ok(()) }
}

/// RFC 7692 §7.1.2: a decimal integer "without leading zeroes between 8 to 15, inclusive".
fn window_bits(value: &str) -> Result<u8, NegotiationError> {
    match value.as_bytes() {
        [digit @ b'8'..=b'9'] => Ok(digit - b'0'),
        [b'1', digit @ b'0'..=b'5'] => Ok(10 + digit - b'0'),
        _ => Err(NegotiationError::InvalidValue),
    }
}

fn push_flag(out: &mut String, name: &str, set: bool) {
    if set {
        out.push_str("; ");
        out.push_str(name);
    }
}

fn push_bits(out: &mut String, name: &str, bits: u8) {
    // Writing into a String cannot fail.
    let _ = write!(out, "; {name}={bits}");
}

impl DeflateConfig {
    fn server_bits(&self) -> u8 {
        self.server_max_window_bits.clamp(*WINDOW_BITS.start(), *WINDOW_BITS.end())
    }

    fn client_bits(&self) -> u8 {
        self.client_max_window_bits.clamp(*WINDOW_BITS.start(), *WINDOW_BITS.end())
    }

    /// Appends a client's offer, in the form of one element of `Sec-WebSocket-Extensions`.
    ///
    /// It always offers `client_max_window_bits`: the client supports any window that a server demands.
    pub fn offer(&self, out: &mut String) {
        out.push_str(NAME);
        push_flag(out, SERVER_NO_CONTEXT_TAKEOVER, self.server_no_context_takeover);
        push_flag(out, CLIENT_NO_CONTEXT_TAKEOVER, self.client_no_context_takeover);
        // RFC 7692 §7.1.2.1: absence allows 32,768 bytes.
        if self.server_bits() < *WINDOW_BITS.end() {
            push_bits(out, SERVER_MAX_WINDOW_BITS, self.server_bits());
        }
        match self.client_bits() {
            15 => push_flag(out, CLIENT_MAX_WINDOW_BITS, true),
            bits => push_bits(out, CLIENT_MAX_WINDOW_BITS, bits),
        }
    }

    /// Checks a server's answer to [`offer`](Self::offer) and returns the negotiated parameters.
    ///
    /// # Errors
    /// [`NegotiationError`] when the client has to fail the connection (RFC 7692 §7.1).
    pub fn accept_response(&self, ext: &Extension<'_>) -> Result<DeflateParams, NegotiationError> {
        if ext.name != NAME {
            return Err(NegotiationError::NotPermessageDeflate);
        }
        let answer = parse(ext)?;
        // RFC 7692 §7.1.1.1: a server accepts the demand by repeating it. It may also promise it without a demand.
        if self.server_no_context_takeover && !answer.server_no_context_takeover {
            return Err(NegotiationError::ContextTakeoverNotAnswered);
        }
        // RFC 7692 §7.1.2.1: "the same or smaller value as the offer"; absence would mean 32,768 bytes.
        let server_max_window_bits = answer.server_max_window_bits.unwrap_or(*WINDOW_BITS.end());
        if server_max_window_bits > self.server_bits() {
            return Err(NegotiationError::WindowTooLarge);
        }
        // RFC 7692 §7.1.2.2: the client allows a demand, but a demand has to have a value. Whatever the server
        // answers, the client keeps to the hint that it gave.
        let client_max_window_bits = match answer.client_max_window_bits {
            None => self.client_bits(),
            Some(None) => return Err(NegotiationError::InvalidValue),
            Some(Some(bits)) => bits.min(self.client_bits()),
        };
        Ok(DeflateParams {
            server_no_context_takeover: answer.server_no_context_takeover,
            // RFC 7692 §7.1.1.2: the client complies even if it gave no hint, and keeps to its own hint.
            client_no_context_takeover: answer.client_no_context_takeover || self.client_no_context_takeover,
            server_max_window_bits,
            client_max_window_bits,
        })
    }

    /// Accepts the first of a client's offers that can be, and appends the server's answer, in the form of one element
    /// of `Sec-WebSocket-Extensions`; `None` declines them all, and appends nothing.
    ///
    /// Offers of other extensions are passed over, so that the whole header may be handed in.
    pub fn accept_offers<'e, 'a: 'e>(
        &self,
        offers: impl Iterator<Item = &'e Extension<'a>>,
        response: &mut String,
    ) -> Option<DeflateParams> {
        // RFC 7692 §5: the order is the client's preference; a declined offer leaves the next one.
        let offer = offers.filter(|ext| ext.name == NAME).find_map(|ext| parse(ext).ok())?;
        let params = DeflateParams {
            // RFC 7692 §7.1.1.1: has to be promised if it was demanded.
            server_no_context_takeover: offer.server_no_context_takeover || self.server_no_context_takeover,
            // RFC 7692 §7.1.1.2: with the client's hint this end need not keep a window either.
            client_no_context_takeover: offer.client_no_context_takeover || self.client_no_context_takeover,
            // RFC 7692 §7.1.2.1: at most what was demanded.
            server_max_window_bits: self.server_bits().min(offer.server_max_window_bits.unwrap_or(15)),
            // RFC 7692 §7.1.2.2: only a client that offered the parameter accepts a demand.
            client_max_window_bits: match offer.client_max_window_bits {
                None => *WINDOW_BITS.end(),
                Some(hint) => self.client_bits().min(hint.unwrap_or(15)),
            },
        };
        response.push_str(NAME);
        push_flag(response, SERVER_NO_CONTEXT_TAKEOVER, params.server_no_context_takeover);
        push_flag(response, CLIENT_NO_CONTEXT_TAKEOVER, params.client_no_context_takeover);
        // A window without a demand is not announced: a smaller one needs no promise.
        if offer.server_max_window_bits.is_some() {
            push_bits(response, SERVER_MAX_WINDOW_BITS, params.server_max_window_bits);
        }
        if params.client_max_window_bits < *WINDOW_BITS.end() {
            push_bits(response, CLIENT_MAX_WINDOW_BITS, params.client_max_window_bits);
        }
        Some(params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::extensions;

    /// The server's answer, and what it takes itself to have agreed to.
    fn answer(config: &DeflateConfig, offers: &str) -> Option<(String, DeflateParams)> {
        let mut response = String::new();
        let params = config.accept_offers(extensions::parse(offers).unwrap().iter(), &mut response);
        assert_eq!(params.is_none(), response.is_empty(), "a declined offer is not answered");
        params.map(|params| (response, params))
    }

    fn accepted(config: &DeflateConfig, response: &str) -> Result<DeflateParams, NegotiationError> {
        config.accept_response(&extensions::parse(response).unwrap()[0])
    }

    fn offer(config: &DeflateConfig) -> String {
        let mut out = String::new();
        config.offer(&mut out);
        out
    }

    fn config() -> DeflateConfig {
        DeflateConfig::default()
    }

    // RFC 7692 §7.1, §7.1.1, §7.1.2: each parameter by itself, answered by a server that demands nothing.
    #[test]
    fn answers_each_parameter_and_nothing_else() {
        let table = [
            ("", "", (false, false, 15, 15)),
            ("; server_no_context_takeover", "; server_no_context_takeover", (true, false, 15, 15)),
            ("; client_no_context_takeover", "; client_no_context_takeover", (false, true, 15, 15)),
            ("; server_max_window_bits=10", "; server_max_window_bits=10", (false, false, 10, 15)),
            ("; server_max_window_bits=\"1\\2\"", "; server_max_window_bits=12", (false, false, 12, 15)),
            ("; server_max_window_bits=15", "; server_max_window_bits=15", (false, false, 15, 15)),
            ("; server_max_window_bits=8", "; server_max_window_bits=8", (false, false, 8, 15)),
            ("; client_max_window_bits", "", (false, false, 15, 15)),
            ("; client_max_window_bits=15", "", (false, false, 15, 15)),
            ("; client_max_window_bits=8", "; client_max_window_bits=8", (false, false, 15, 8)),
            (
                "; client_max_window_bits=9; server_max_window_bits=8; \
                 client_no_context_takeover; server_no_context_takeover",
                "; server_no_context_takeover; client_no_context_takeover; \
                 server_max_window_bits=8; client_max_window_bits=9",
                (true, true, 8, 9),
            ),
        ];
        for (offer, response, (server_nct, client_nct, server_bits, client_bits)) in table {
            let params = DeflateParams {
                server_no_context_takeover: server_nct,
                client_no_context_takeover: client_nct,
                server_max_window_bits: server_bits,
                client_max_window_bits: client_bits,
            };
            let [offer, response] =
                [offer, response].map(|params| alloc::format!("permessage-deflate{params}"));
            assert_eq!(answer(&config(), &offer), Some((response, params)), "{offer}");
        }
    }

    // RFC 7692 §7.1: "A server MUST decline an extension negotiation offer" with an undefined parameter, an invalid
    // value, or several parameters of the same name. RFC 7692 §7.1: a client fails on the same in an answer.
    #[test]
    fn declines_and_fails_malformed_parameters() {
        use NegotiationError::{DuplicateParam, InvalidValue, UnknownParam};
        let table = [
            ("unknown", UnknownParam),
            ("Server_no_context_takeover", UnknownParam),
            ("server_max_window_bit=10", UnknownParam),
            ("server_no_context_takeover=1", InvalidValue),
            ("client_no_context_takeover=true", InvalidValue),
            ("server_max_window_bits", InvalidValue),
            ("server_max_window_bits=7", InvalidValue),
            ("server_max_window_bits=16", InvalidValue),
            ("server_max_window_bits=0", InvalidValue),
            ("server_max_window_bits=08", InvalidValue),
            ("server_max_window_bits=010", InvalidValue),
            ("server_max_window_bits=+10", InvalidValue),
            ("server_max_window_bits=-10", InvalidValue),
            ("server_max_window_bits=\"010\"", InvalidValue),
            ("server_max_window_bits=1e1", InvalidValue),
            ("server_max_window_bits=100", InvalidValue),
            ("server_max_window_bits=266", InvalidValue),
            ("server_max_window_bits=4294967306", InvalidValue),
            ("client_max_window_bits=7", InvalidValue),
            ("client_max_window_bits=16", InvalidValue),
            ("client_max_window_bits=09", InvalidValue),
            ("client_max_window_bits=a", InvalidValue),
            ("server_no_context_takeover; server_no_context_takeover", DuplicateParam),
            ("client_no_context_takeover; client_no_context_takeover", DuplicateParam),
            ("server_max_window_bits=10; server_max_window_bits=10", DuplicateParam),
            ("client_max_window_bits=10; client_max_window_bits=11", DuplicateParam),
            ("client_max_window_bits; client_max_window_bits=11", DuplicateParam),
        ];
        for (params, error) in table {
            let element = alloc::format!("permessage-deflate; {params}");
            assert_eq!(answer(&config(), &element), None, "{params}");
            assert_eq!(accepted(&config(), &element), Err(error), "{params}");
        }
    }

    #[test]
    fn reads_every_window_from_8_to_15_and_no_other_number() {
        for n in 0..=999u16 {
            let expected =
                if (8..=15).contains(&n) { Ok(n as u8) } else { Err(NegotiationError::InvalidValue) };
            assert_eq!(window_bits(&alloc::format!("{n}")), expected);
        }
    }

    // RFC 7692 §5: the first offer that can be accepted, in the order of preference.
    #[test]
    fn falls_back_to_the_next_offer() {
        let offers = "permessage-deflate; server_max_window_bits=7, x-other, permessage-deflate; mystery, \
                      permessage-deflate; server_max_window_bits=12, permessage-deflate";
        let (response, params) = answer(&config(), offers).unwrap();
        assert_eq!(response, "permessage-deflate; server_max_window_bits=12");
        assert_eq!(params.server_max_window_bits, 12);
        assert_eq!(answer(&config(), "x-other, permessage-deflate; mystery"), None);
        assert_eq!(answer(&config(), "permessage-bzip2"), None);
    }

    // RFC 7692 §7.1.2.2: "MUST NOT include the client_max_window_bits extension parameter" unless it was offered.
    #[test]
    fn demands_a_client_window_only_where_offered() {
        let config = DeflateConfig { client_max_window_bits: 10, ..config() };
        let (response, params) = answer(&config, "permessage-deflate").unwrap();
        assert_eq!((&*response, params.client_max_window_bits), ("permessage-deflate", 15));
        for (hint, bits) in [("", 10), ("=9", 9), ("=10", 10), ("=15", 10)] {
            let offer = alloc::format!("permessage-deflate; client_max_window_bits{hint}");
            let (response, params) = answer(&config, &offer).unwrap();
            assert_eq!(response, alloc::format!("permessage-deflate; client_max_window_bits={bits}"));
            assert_eq!(params.client_max_window_bits, bits);
        }
    }

    // RFC 7692 §7.1.2.1: "the same or smaller value as the offer".
    #[test]
    fn never_answers_a_larger_server_window() {
        for (own, demand, bits) in
            [(15, 15, 15), (15, 9, 9), (10, 15, 10), (10, 10, 10), (10, 8, 8), (8, 15, 8)]
        {
            let config = DeflateConfig { server_max_window_bits: own, ..config() };
            let offer = alloc::format!("permessage-deflate; server_max_window_bits={demand}");
            let (response, params) = answer(&config, &offer).unwrap();
            assert_eq!(response, alloc::format!("permessage-deflate; server_max_window_bits={bits}"));
            assert_eq!(params.server_max_window_bits, bits);
        }
        let config = DeflateConfig { server_max_window_bits: 10, ..config() };
        let (response, params) = answer(&config, "permessage-deflate").unwrap();
        assert_eq!((&*response, params.server_max_window_bits), ("permessage-deflate", 10));
    }

    // RFC 7692 §7.1.1.1, §7.1.1.2: both flags may be in an answer to an offer without them.
    #[test]
    fn a_server_answers_with_its_own_flags() {
        let config =
            DeflateConfig { server_no_context_takeover: true, client_no_context_takeover: true, ..config() };
        let (response, params) = answer(&config, "permessage-deflate").unwrap();
        assert_eq!(response, "permessage-deflate; server_no_context_takeover; client_no_context_takeover");
        assert!(params.server_no_context_takeover && params.client_no_context_takeover);
    }

    #[test]
    fn offers_what_is_configured() {
        assert_eq!(offer(&config()), "permessage-deflate; client_max_window_bits");
        let all = DeflateConfig {
            server_no_context_takeover: true,
            client_no_context_takeover: true,
            server_max_window_bits: 10,
            client_max_window_bits: 8,
            ..config()
        };
        assert_eq!(
            offer(&all),
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover; \
             server_max_window_bits=10; client_max_window_bits=8"
        );
        let beyond = DeflateConfig { server_max_window_bits: 0, client_max_window_bits: 99, ..config() };
        assert_eq!(offer(&beyond), "permessage-deflate; server_max_window_bits=8; client_max_window_bits");
    }

    // RFC 7692 §7.1.1.1, §7.1.2.1: a demand that is not answered was not accepted.
    #[test]
    fn fails_an_answer_that_ignores_a_demand() {
        let takeover = DeflateConfig { server_no_context_takeover: true, ..config() };
        assert_eq!(
            accepted(&takeover, "permessage-deflate"),
            Err(NegotiationError::ContextTakeoverNotAnswered)
        );
        let window = DeflateConfig { server_max_window_bits: 10, ..config() };
        for response in ["permessage-deflate", "permessage-deflate; server_max_window_bits=11"] {
            assert_eq!(accepted(&window, response), Err(NegotiationError::WindowTooLarge));
        }
        for bits in [8, 9, 10] {
            let response = alloc::format!("permessage-deflate; server_max_window_bits={bits}");
            assert_eq!(accepted(&window, &response).unwrap().server_max_window_bits, bits);
        }
    }

    #[test]
    fn fails_an_answer_of_another_name() {
        assert_eq!(accepted(&config(), "permessage-bzip2"), Err(NegotiationError::NotPermessageDeflate));
    }

    // RFC 7692 §7.1.1.1, §7.1.1.2, §7.1.2.1: what an answer may contain without having been offered.
    #[test]
    fn a_client_accepts_promises_and_demands_that_it_did_not_ask_for() {
        let response = "permessage-deflate; server_no_context_takeover; client_no_context_takeover; \
                        server_max_window_bits=9; client_max_window_bits=10";
        let params = DeflateParams {
            server_no_context_takeover: true,
            client_no_context_takeover: true,
            server_max_window_bits: 9,
            client_max_window_bits: 10,
        };
        assert_eq!(accepted(&config(), response), Ok(params));
    }

    // RFC 7692 §7.1.2.2: the client uses no larger window than its hint, even if the answer allows it.
    #[test]
    fn a_client_uses_its_own_hints() {
        let config =
            DeflateConfig { client_max_window_bits: 10, client_no_context_takeover: true, ..config() };
        for (response, bits) in [
            ("permessage-deflate", 10),
            ("permessage-deflate; client_max_window_bits=15", 10),
            ("permessage-deflate; client_max_window_bits=8", 8),
        ] {
            let params = accepted(&config, response).unwrap();
            assert_eq!((params.client_max_window_bits, params.client_no_context_takeover), (bits, true));
        }
    }

    // RFC 7692 §7.1.2.2: in an answer the parameter has a value.
    #[test]
    fn fails_an_answer_whose_client_window_has_no_value() {
        let response = "permessage-deflate; client_max_window_bits";
        assert_eq!(accepted(&config(), response), Err(NegotiationError::InvalidValue));
    }

    #[test]
    fn both_ends_negotiate_the_same_parameters() {
        for round in 0..10_000u64 {
            let mut rng = fastrand::Rng::with_seed(round);
            let mut draw = || DeflateConfig {
                server_no_context_takeover: rng.bool(),
                client_no_context_takeover: rng.bool(),
                server_max_window_bits: rng.u8(8..=15),
                client_max_window_bits: rng.u8(8..=15),
                ..config()
            };
            let (client, server) = (draw(), draw());
            let (response, params) = answer(&server, &offer(&client)).unwrap();
            let seen = accepted(&client, &response).unwrap();
            // The server may use a smaller window than it has promised; everything else is equal.
            assert!(params.server_max_window_bits <= seen.server_max_window_bits, "seed {round}");
            assert_eq!(
                DeflateParams { server_max_window_bits: seen.server_max_window_bits, ..params },
                seen,
                "seed {round}"
            );
        }
    }
}
