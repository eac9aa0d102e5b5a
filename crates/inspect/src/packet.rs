//! Finds the TCP segment in a captured packet. etherparse parses the link, IP and TCP headers.

use std::net::{IpAddr, SocketAddr};

use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TransportSlice};

/// The link layer of a packet, by the numbers of <https://www.tcpdump.org/linktypes.html>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkType(pub i32);

impl LinkType {
    const NULL: i32 = 0;
    const ETHERNET: i32 = 1;
    const RAW_OF_OTHERS: [i32; 2] = [12, 14];
    const RAW: i32 = 101;
    const LOOP: i32 = 108;
    const LINUX_SLL: i32 = 113;
    const IPV4: i32 = 228;
    const IPV6: i32 = 229;
    const LINUX_SLL2: i32 = 276;

    /// Whether packets of this link type can be read.
    pub fn is_known(self) -> bool {
        Self::RAW_OF_OTHERS.contains(&self.0)
            || matches!(
                self.0,
                Self::NULL
                    | Self::ETHERNET
                    | Self::RAW
                    | Self::LOOP
                    | Self::LINUX_SLL
                    | Self::IPV4
                    | Self::IPV6
                    | Self::LINUX_SLL2
            )
    }
}

/// A TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: Option<u32>,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    pub(crate) payload: &'a [u8],
}

/// The reason why a packet holds no TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTcp {
    /// Another protocol.
    Other,
    /// A fragment of an IP packet.
    Fragment,
    /// Cut off before the end of its headers, or malformed.
    Malformed,
    /// An unknown link layer.
    Link,
}

/// The TCP segment in a packet.
pub(crate) fn segment(link: LinkType, data: &[u8]) -> Result<Segment<'_>, NotTcp> {
    let ether_type = |at: usize, payload_at: usize| {
        let bytes = data.get(at..at + 2).ok_or(NotTcp::Malformed)?;
        let payload = data.get(payload_at..).ok_or(NotTcp::Malformed)?;
        Ok(LaxSlicedPacket::from_ether_type(EtherType(u16::from_be_bytes([bytes[0], bytes[1]])), payload))
    };
    let ip = |payload_at: usize| {
        let payload = data.get(payload_at..).ok_or(NotTcp::Malformed)?;
        LaxSlicedPacket::from_ip(payload).map_err(|_| NotTcp::Malformed)
    };
    let packet = match link.0 {
        LinkType::ETHERNET => LaxSlicedPacket::from_ethernet(data).map_err(|_| NotTcp::Malformed)?,
        // Skip four bytes of address family, which are in the byte order of the capturing machine; the IP version has
        // the same information.
        LinkType::NULL | LinkType::LOOP => ip(4)?,
        LinkType::LINUX_SLL => ether_type(14, 16)?,
        LinkType::LINUX_SLL2 => ether_type(0, 20)?,
        _ if link.is_known() => ip(0)?,
        _ => return Err(NotTcp::Link),
    };
    let (source, destination, fragmented): (IpAddr, IpAddr, bool) = match &packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into(), ip.payload().fragmented)
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into(), ip.payload().fragmented)
        }
        _ => return Err(NotTcp::Other),
    };
    if fragmented {
        return Err(NotTcp::Fragment);
    }
    let tcp = match packet.transport {
        Some(TransportSlice::Tcp(tcp)) => tcp,
        None if packet.stop_err.is_some() => return Err(NotTcp::Malformed),
        _ => return Err(NotTcp::Other),
    };
    Ok(Segment {
        source: SocketAddr::new(source, tcp.source_port()),
        destination: SocketAddr::new(destination, tcp.destination_port()),
        sequence: tcp.sequence_number(),
        acknowledgment: tcp.ack().then(|| tcp.acknowledgment_number()),
        syn: tcp.syn(),
        fin: tcp.fin(),
        rst: tcp.rst(),
        payload: tcp.payload(),
    })
}
