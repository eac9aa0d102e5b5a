//! `/metrics`: the text format of Prometheus.

use std::fmt::{Display, Write as _};
use std::sync::atomic::Ordering;

use wireloom_hub::HubStats;
use wireloom_hub::engine::EngineHealth;

use super::Routes;
use super::figures::{BUCKETS, Histogram, Traffic};
use super::process;

pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The page, metric by metric.
#[derive(Default)]
struct Page(String);

impl Page {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn add(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.begin(name, kind, help);
        self.sample(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.add(&format!("wireloom_{name}"), "counter", help, value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.add(&format!("wireloom_{name}"), "gauge", help, value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let name = format!("wireloom_{name}");
        self.begin(&name, "histogram", help);
        let (cumulative, total, sum) = histogram.read();
        for (bound, count) in BUCKETS.iter().zip(cumulative) {
            self.sample(&format!("{name}_bucket"), &format!("{{le=\"{bound}\"}}"), count);
        }
        self.sample(&format!("{name}_bucket"), "{le=\"+Inf\"}", total);
        self.sample(&format!("{name}_sum"), "", sum);
        self.sample(&format!("{name}_count"), "", total);
    }
}

pub(super) fn page(routes: &Routes) -> String {
    let mut page = Page::default();
    server(&mut page, routes);
    memory(&mut page, routes);
    websockets(&mut page, routes);
    hub(&mut page, &routes.hub.stats());
    engine(&mut page, &routes.hub.health());
    page.counter(
        "sink_messages_total",
        "Messages and bodies received by /sink.",
        routes.sink_counters.messages(),
    );
    page.counter("sink_bytes_total", "Bytes received by /sink.", routes.sink_counters.bytes());
    process(&mut page, routes.start_time);
    page.0
}

/// Channels and their clients, rooms among them.
fn hub(page: &mut Page, stats: &HubStats) {
    page.gauge("channels_open", "Channels that have subscribers.", stats.channels);
    page.gauge("hub_clients_open", "Connections to the hub.", stats.clients);
    page.counter("hub_connections_total", "Connections to the hub that were established.", stats.connected);
    page.counter("hub_publications_total", "Publications on this node.", stats.publications);
    page.counter("hub_publications_dropped_total", "Publications dropped for slow clients.", stats.dropped);
    page.counter("hub_recovered_total", "Clients that recovered everything they missed.", stats.recovered);
    page.counter(
        "hub_unrecovered_total",
        "Clients that reconnected and could not recover what they missed.",
        stats.unrecovered,
    );
    page.counter(
        "hub_client_failures_total",
        "What the engine failed to do for clients: subscriptions, recoveries, publications, histories, presence, joins and leaves.",
        stats.engine_failures,
    );
    page.begin("wireloom_hub_evictions_total", "counter", "Clients that the hub disconnected, by reason.");
    page.sample("wireloom_hub_evictions_total", "{reason=\"slow\"}", stats.evicted_slow);
    page.counter(
        "hub_wrong_keys_total",
        "Requests for the server API, and logins of the admin page, that were refused for their key.",
        stats.wrong_keys,
    );
    for (name, about, counts) in [
        (
            "wireloom_hub_refused_total",
            "Commands that were refused, by the code of the error.",
            &stats.refused,
        ),
        ("wireloom_hub_ended_total", "Connections to the hub that have ended, by code.", &stats.ended),
    ] {
        page.begin(name, "counter", about);
        for (code, count) in counts {
            page.sample(name, &format!("{{code=\"{code}\"}}"), *count);
        }
    }
}

/// Where histories are stored.
fn engine(page: &mut Page, health: &EngineHealth) {
    let is_up = u8::from(health.failure.is_none());
    page.gauge(
        "hub_engine_up",
        "1 while publications, presence and events can be stored, otherwise 0.",
        is_up,
    );
    page.counter(
        "hub_engine_failures_total",
        "Times that the engine could not store something, or that a command of it failed.",
        health.failures,
    );
    page.counter(
        "hub_engine_dropped_total",
        "Messages of other nodes that arrived faster than they were delivered and were dropped. Those that are in a history are read again.",
        health.dropped,
    );
}

fn server(page: &mut Page, routes: &Routes) {
    let stats = routes.server.get().map(wireloom::ServerHandle::stats).unwrap_or_default();
    page.counter("connections_accepted_total", "Connections accepted.", stats.connections_accepted);
    page.counter(
        "connections_refused_total",
        "Connections closed before their first request: too many from one address, or in handshakes.",
        stats.connections_refused,
    );
    page.gauge("connections_open", "Open connections.", stats.connections_open);
    page.counter("tls_failed_total", "TLS handshakes that failed or timed out.", stats.tls_failed);
    page.counter("http2_connections_total", "Connections that used HTTP/2.", stats.http2_connections);
    page.counter("requests_total", "Requests, WebSocket handshakes included.", stats.requests);
    page.begin("wireloom_responses_total", "counter", "Responses by status code.");
    for (status, count) in routes.figures.responses() {
        page.sample("wireloom_responses_total", &format!("{{code=\"{status}\"}}"), count);
    }
    page.counter("websockets_opened_total", "WebSockets opened.", stats.websockets_opened);
    page.gauge("websockets_open", "Open WebSockets.", stats.websockets_open);
    page.counter("handler_panics_total", "Handlers that panicked.", stats.handlers_panicked);
    page.counter(
        "slow_messages_dropped_total",
        "Messages dropped because the client is slow.",
        stats.slow_messages_dropped,
    );
    page.counter(
        "slow_clients_disconnected_total",
        "WebSockets disconnected because the client is slow.",
        stats.slow_peers_disconnected,
    );
    page.counter(
        "accept_failures_total",
        "Times that connections could not be accepted, mostly because no file descriptor was free, until one was.",
        stats.accept_failed,
    );
    page.counter(
        "log_lines_dropped_total",
        "Lines of the log that were dropped because its reader is too slow.",
        crate::log::dropped() as u64,
    );
}

/// The memory that clients make the server hold.
fn memory(page: &mut Page, routes: &Routes) {
    let stats = routes.server.get().map(|server| server.stats().memory).unwrap_or_default();
    page.gauge(
        "memory_max_bytes",
        "The limit on memory held for clients: --max-memory without what the allocator, threads and --admin keep.",
        stats.max,
    );
    page.begin("wireloom_memory_bytes", "gauge", "Memory held for clients, by use.");
    for (kind, value) in [
        ("connections", stats.connections),
        ("read_buffers", stats.read_buffers),
        ("assemblies", stats.assemblies),
        ("inflated", stats.inflated),
        ("send_queues", stats.send_queues),
        ("heads", stats.heads),
        ("bodies", stats.bodies),
        ("http2_windows", stats.http2_windows),
    ] {
        page.sample("wireloom_memory_bytes", &format!("{{use=\"{kind}\"}}"), value);
    }
    page.counter("memory_refused_total", "Times that memory was refused at the limit.", stats.refused);
    page.counter("memory_evicted_total", "Connections closed to free memory.", stats.evicted);
}

fn websockets(page: &mut Page, routes: &Routes) {
    let figures = &routes.figures;
    let mut moved = |name: &str, help: &str, figure: fn(&Traffic) -> [u64; 2]| {
        let name = format!("wireloom_{name}");
        page.begin(&name, "counter", help);
        for (protocol, traffic) in figures.traffic() {
            for (direction, value) in ["in", "out"].iter().zip(figure(traffic)) {
                let labels = format!("{{direction=\"{direction}\",protocol=\"{protocol}\"}}");
                page.sample(&name, &labels, value);
            }
        }
    };
    moved("messages_total", "WebSocket messages by direction and version of HTTP.", |traffic| {
        [&traffic.received, &traffic.sent].map(|moved| moved.messages.load(Ordering::Relaxed))
    });
    moved("message_bytes_total", "Their payloads in bytes, without compression.", |traffic| {
        [&traffic.received, &traffic.sent].map(|moved| moved.bytes.load(Ordering::Relaxed))
    });
    let name = "wireloom_route_websockets_open";
    page.begin(name, "gauge", "Open WebSockets of /echo, /sink and /source by version of HTTP.");
    for (protocol, count) in routes.clients.count() {
        page.sample(name, &format!("{{protocol=\"{protocol}\"}}"), count);
    }
    page.begin("wireloom_evictions_total", "counter", "WebSockets that the server ended, by reason.");
    for (reason, count) in figures.evictions() {
        page.sample("wireloom_evictions_total", &format!("{{reason=\"{reason}\"}}"), count);
    }
    page.histogram(
        "handshake_duration_seconds",
        "From the head of a WebSocket handshake until the WebSocket is open.",
        &figures.handshakes,
    );
    page.histogram(
        "message_duration_seconds",
        "From the first of the messages that arrived together until their answers are written.",
        &figures.answers,
    );
}

/// The metrics that Prometheus's client libraries have in common.
fn process(page: &mut Page, start_time: u64) {
    page.gauge("start_time_seconds", "Start of the server, in seconds since 1970.", start_time);
    page.add(
        "process_start_time_seconds",
        "gauge",
        "Start of the process, in seconds since 1970.",
        start_time,
    );
    let Some(process) = process::latest() else { return };
    for (name, kind, help, value) in [
        ("process_cpu_seconds_total", "counter", "User and system time in seconds.", process.cpu_seconds),
        ("process_resident_memory_bytes", "gauge", "Resident memory in bytes.", process.resident_bytes),
        ("process_virtual_memory_bytes", "gauge", "Virtual memory in bytes.", process.virtual_bytes),
        ("process_open_fds", "gauge", "Open file descriptors.", process.open_fds),
        ("process_max_fds", "gauge", "The limit on open file descriptors.", process.max_fds),
        ("process_threads", "gauge", "Threads.", process.threads),
    ] {
        page.add(name, kind, help, value);
    }
}
