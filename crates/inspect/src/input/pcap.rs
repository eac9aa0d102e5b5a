//! pcap and pcapng. pcap-parser parses the blocks; this module keeps the time resolutions, link types and secrets.

use std::io::{self, BufRead, Read};
use std::time::Duration;

use pcap_parser::pcapng::SecretsType;
use pcap_parser::traits::{PcapNGPacketBlock as _, PcapReaderIterator};
use pcap_parser::{Block, LegacyPcapReader, PcapBlockOwned, PcapError, PcapHeader, PcapNGReader};

use super::{ReadError, Sink, flush};
use crate::inspector::Inspector;
use crate::limits::BLOCK_LEN_MAX;
use crate::packet::LinkType;

/// The initial size of the buffer, in bytes.
const CAPACITY: usize = 64 << 10;

/// The maximum number of interfaces in a section of pcapng.
const INTERFACES_MAX: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    /// Units of time in a second.
    resolution: u64,
    offset_s: i64,
}

impl Interface {
    fn time(&self, ticks: u64) -> Duration {
        let whole = ticks / self.resolution;
        let rest = ticks % self.resolution;
        let nanos = u128::from(rest) * 1_000_000_000 / u128::from(self.resolution);
        Duration::new(whole.saturating_add_signed(self.offset_s), nanos as u32)
    }
}

/// Keeps the error of a read, of which pcap-parser says only that there was one.
struct Source<R> {
    input: R,
    failed: Option<io::Error>,
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.input.read(buffer).map_err(|error| {
            let kind = error.kind();
            self.failed = Some(error);
            kind.into()
        })
    }
}

pub(super) fn read(
    input: &mut (impl BufRead + Send),
    inspector: &mut Inspector,
    sink: &mut Sink<'_>,
) -> Result<(), ReadError> {
    let mut source = Source { input, failed: None };
    let result = packets(&mut source, inspector, sink);
    match (result, source.failed) {
        (Err(ReadError::Io(_)), Some(error)) => Err(ReadError::Io(error)),
        (result, _) => result,
    }
}

fn packets(
    input: &mut Source<&mut (impl BufRead + Send)>,
    inspector: &mut Inspector,
    sink: &mut Sink<'_>,
) -> Result<(), ReadError> {
    let is_pcapng = input.input.fill_buf()?.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]);
    // Not `create_reader`: it reads twice before it returns, and waits for the second packet of a live capture.
    let created: Result<Box<dyn PcapReaderIterator + '_>, _> = if is_pcapng {
        PcapNGReader::new(CAPACITY, input).map(|reader| Box::new(reader) as _)
    } else {
        LegacyPcapReader::new(CAPACITY, input).map(|reader| Box::new(reader) as _)
    };
    let mut reader = match created {
        Ok(reader) => reader,
        Err(PcapError::Eof) => return Ok(()),
        Err(PcapError::Incomplete(_)) => return Err(ReadError::Truncated { offset: 0 }),
        Err(error) => return Err(failure(&error, 0)),
    };
    let mut capacity = CAPACITY;
    let mut header: Option<PcapHeader> = None;
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut entries = Vec::new();
    let mut offset = 0u64;
    loop {
        let (used, block) = match reader.next() {
            Ok(next) => next,
            Err(PcapError::Eof) => return Ok(()),
            Err(PcapError::UnexpectedEof) => return Err(ReadError::Truncated { offset }),
            Err(PcapError::Incomplete(_)) => {
                let before = reader.data().len();
                reader.refill().map_err(|error| failure(&error, offset))?;
                if reader.data().len() == before && !reader.reader_exhausted() {
                    grow(&mut *reader, &mut capacity, offset)?;
                } else if reader.data().len() == before && before > 0 {
                    return Err(ReadError::Truncated { offset });
                }
                continue;
            }
            Err(PcapError::BufferTooSmall) => {
                grow(&mut *reader, &mut capacity, offset)?;
                continue;
            }
            Err(error) => return Err(failure(&error, offset)),
        };
        match block {
            PcapBlockOwned::LegacyHeader(new) => header = Some(new),
            PcapBlockOwned::Legacy(packet) => {
                if let Some(header) = &header {
                    let fraction = if header.is_nanosecond_precision() { 1 } else { 1000 };
                    let nanos = u64::from(packet.ts_usec) * fraction;
                    let time = Duration::from_secs(packet.ts_sec.into()) + Duration::from_nanos(nanos);
                    let len = packet.data.len().min(packet.caplen as usize);
                    let link = LinkType(header.network.0 & 0xFFFF);
                    inspector.handle_packet(time, link, &packet.data[..len], &mut entries);
                }
            }
            PcapBlockOwned::NG(Block::SectionHeader(_)) => interfaces.clear(),
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                if interfaces.len() >= INTERFACES_MAX {
                    return Err(ReadError::Malformed { offset, reason: "too many interfaces".into() });
                }
                interfaces.push(Interface {
                    link: LinkType(interface.linktype.0),
                    resolution: interface.ts_resolution().filter(|&units| units > 0).unwrap_or(1_000_000),
                    offset_s: interface.if_tsoffset,
                });
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                if let Some(interface) = interfaces.get(packet.if_id as usize) {
                    let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                    let time = interface.time(ticks);
                    inspector.handle_packet(time, interface.link, packet.packet_data(), &mut entries);
                }
            }
            PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
                // A Simple Packet Block has no time and belongs to the first interface.
                if let Some(interface) = interfaces.first() {
                    let len = packet.data.len().min(packet.origlen as usize);
                    inspector.handle_packet(
                        Duration::ZERO,
                        interface.link,
                        &packet.data[..len],
                        &mut entries,
                    );
                }
            }
            PcapBlockOwned::NG(Block::DecryptionSecrets(secrets))
                if secrets.secrets_type == SecretsType::TlsKeyLog =>
            {
                let len = secrets.data.len().min(secrets.secrets_len as usize);
                inspector.add_secrets(&secrets.data[..len]);
            }
            PcapBlockOwned::NG(_) => {}
        }
        reader.consume(used);
        offset += used as u64;
        if flush(&mut entries, sink).is_break() {
            return Ok(());
        }
    }
}

/// Enlarges the buffer for a block that is larger.
fn grow(reader: &mut dyn PcapReaderIterator, capacity: &mut usize, offset: u64) -> Result<(), ReadError> {
    *capacity *= 2;
    if *capacity > BLOCK_LEN_MAX || !reader.grow(*capacity) {
        let reason = format!("a block is longer than {BLOCK_LEN_MAX} bytes");
        return Err(ReadError::Malformed { offset, reason });
    }
    Ok(())
}

fn failure(error: &PcapError<&[u8]>, offset: u64) -> ReadError {
    let reason = match error {
        PcapError::ReadError => return ReadError::Io(io::ErrorKind::Other.into()),
        PcapError::HeaderNotRecognized => "this is no pcap file".into(),
        PcapError::NomError(_, kind) | PcapError::OwnedNomError(_, kind) => {
            format!("the block is invalid ({})", kind.description())
        }
        _ => "the block is invalid".into(),
    };
    ReadError::Malformed { offset, reason }
}
