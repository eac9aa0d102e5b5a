//! `/metrics`: numbers in the text format of Prometheus.

use std::fmt::{Display, Write as _};

use wireloom::server::ServerStats;

use super::Routes;

/// A page of numbers, each with its help and type.
#[derive(Default)]
struct Page(String);

impl Page {
    fn add(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        // Writing to a string does not fail.
        let _ = writeln!(
            self.0,
            "# HELP wireloom_{name} {help}\n# TYPE wireloom_{name} {kind}\nwireloom_{name} {value}"
        );
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.add(name, "counter", help, value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: usize) {
        self.add(name, "gauge", help, value);
    }
}

pub(super) fn page(routes: &Routes) -> String {
    let stats: Vec<ServerStats> =
        routes.servers.get().into_iter().flatten().map(wireloom::ServerHandle::stats).collect();
    let total = |number: fn(&ServerStats) -> u64| stats.iter().map(number).sum::<u64>();
    let open = |number: fn(&ServerStats) -> usize| stats.iter().map(number).sum::<usize>();
    let mut page = Page::default();
    page.counter("connections_accepted_total", "Connections accepted.", total(|s| s.connections_accepted));
    page.counter(
        "connections_refused_total",
        "Connections closed at once: too many from one address.",
        total(|s| s.connections_refused),
    );
    page.gauge("connections_open", "Connections open.", open(|s| s.connections_open));
    page.counter("tls_failed_total", "TLS handshakes that failed or took too long.", total(|s| s.tls_failed));
    page.counter("http2_connections_total", "Connections that spoke HTTP/2.", total(|s| s.http2_connections));
    page.counter("requests_total", "Requests answered, handshakes among them.", total(|s| s.requests));
    page.counter("websockets_opened_total", "WebSockets opened.", total(|s| s.websockets_opened));
    page.gauge("websockets_open", "WebSockets open.", open(|s| s.websockets_open));
    page.counter("handler_panics_total", "Handlers that panicked.", total(|s| s.handlers_panicked));
    page.counter(
        "slow_messages_dropped_total",
        "Messages not sent to clients that are slow.",
        total(|s| s.slow_messages_dropped),
    );
    page.counter(
        "slow_clients_cut_total",
        "WebSockets cut: the client is slow.",
        total(|s| s.slow_peers_cut),
    );
    page.gauge("memory_max_bytes", "Memory that connections may hold.", open(|s| s.memory.max));
    for (category, bytes) in [
        ("read_buffers", open(|s| s.memory.read_buffers)),
        ("assemblies", open(|s| s.memory.assemblies)),
        ("inflated", open(|s| s.memory.inflated)),
        ("send_queues", open(|s| s.memory.send_queues)),
        ("heads", open(|s| s.memory.heads)),
        ("bodies", open(|s| s.memory.bodies)),
        ("http2_windows", open(|s| s.memory.http2_windows)),
    ] {
        let help = format!("Memory that connections hold: {}.", category.replace('_', " "));
        page.gauge(&format!("memory_{category}_bytes"), &help, bytes);
    }
    page.counter(
        "memory_refused_total",
        "Times that memory was refused: the limit was reached.",
        total(|s| s.memory.refused),
    );
    page.counter("memory_evicted_total", "Connections closed to free memory.", total(|s| s.memory.evicted));
    page.gauge("rooms_open", "Rooms that have members.", routes.rooms.len());
    page.counter("sink_messages_total", "Messages and bodies that went into /sink.", routes.sunk.messages());
    page.counter("sink_bytes_total", "Their bytes.", routes.sunk.bytes());
    page.gauge("start_time_seconds", "When this began, in seconds since 1970.", routes.begun_at as usize);
    page.0
}
