//! The memory of subscribers, counted by the allocator.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;

use wireloom::Server;
use wireloom_hub::{Hub, HubConfig};
use wireloom_testing::frame::{masked, upgrade_request};

thread_local! {
    /// Bytes that this thread has allocated and not freed.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is passed on to the system's allocator.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as isize);
        // SAFETY: the contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: the contract is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CONFIG: &str = r#"
client.anonymous = true
channel.subscribe = "anyone"
[[namespace]]
name = "rooms"
subscribe = "anyone"
"#;

/// A subscriber of a room, or of a channel by the client protocol.
fn subscribe(address: SocketAddr, is_room: bool) -> TcpStream {
    let mut client = TcpStream::connect(address).unwrap();
    let path = if is_room { "/rooms/x" } else { "/connection/websocket" };
    client.write_all(upgrade_request(path).as_bytes()).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    for command in [r#"{"id":1,"connect":{}}"#, r#"{"id":2,"subscribe":{"channel":"x"}}"#] {
        if !is_room {
            client.write_all(&masked(0x81, command)).unwrap();
            receive(&mut client);
        }
    }
    client
}

/// Receives a message of less than 64 KiB.
fn receive(client: &mut TcpStream) {
    let mut two = [0; 2];
    client.read_exact(&mut two).unwrap();
    let mut len = u16::from(two[1]);
    if len == 126 {
        client.read_exact(&mut two).unwrap();
        len = u16::from_be_bytes(two);
    }
    client.read_exact(&mut vec![0; len.into()]).unwrap();
}

async fn serve() -> (Hub, SocketAddr) {
    let hub = Hub::builder().config(HubConfig::from_toml(CONFIG).unwrap()).build().unwrap();
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let answering = hub.clone();
    tokio::spawn(server.serve(move |request| {
        let hub = answering.clone();
        async move { hub.answer(request).await }
    }));
    (hub, address)
}

/// Bytes that the server, the hub and tokio hold for each subscriber that has received a message.
async fn held_by_subscriber(is_room: bool) -> usize {
    let (hub, address) = serve().await;
    // Clients of another thread are not counted.
    let (open, opened) = mpsc::channel();
    let (report, mut reported) = tokio::sync::mpsc::unbounded_channel();
    let clients = std::thread::spawn(move || {
        let mut clients = Vec::new();
        while let Ok(count) = opened.recv() {
            clients.extend((0..count).map(|_| subscribe(address, is_room)));
            report.send(()).unwrap();
            // The hub publishes when all are subscribed.
            opened.recv().unwrap();
            clients.iter_mut().for_each(receive);
            report.send(()).unwrap();
        }
    });
    let channel = if is_room { "rooms:x" } else { "x" };
    let mut held_before = 0;
    // Together a power of two, so that tables are full.
    for count in [128, 128] {
        held_before = HELD.get();
        open.send(count).unwrap();
        reported.recv().await.unwrap();
        // A room is joined without an answer.
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        hub.publish(channel, r#""x""#).await.unwrap();
        open.send(0).unwrap();
        reported.recv().await.unwrap();
        // The server waits again.
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
    }
    let held = (HELD.get() - held_before) as usize / 128;
    println!("{held} bytes, room: {is_room}");
    drop(open);
    clients.join().unwrap();
    held
}

/// The memory of a subscriber and its connection, in bytes, as docs/evidence.md and CHANGELOG.md state it.
const HELD_MAX: usize = 1_260;

// Of these, tokio has 128 for the task and 256 for the registration of the socket, and the index of connections by id 4.
#[tokio::test]
async fn a_subscriber_holds_little_memory() {
    for is_room in [true, false] {
        let held = held_by_subscriber(is_room).await;
        assert!(held <= HELD_MAX, "{held} bytes");
    }
}

#[tokio::test]
async fn subscribers_that_have_left_leave_no_memory_behind() {
    let (hub, address) = serve().await;
    let mut held = Vec::new();
    for _ in 0..4 {
        let clients = std::thread::spawn(move || {
            let all: Vec<_> = (0..64).map(|number| subscribe(address, number % 2 == 0)).collect();
            drop(all);
        });
        while !clients.is_finished() || hub.stats().clients > 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        held.push(HELD.get());
    }
    // Tables, and what the runtime keeps, have their size after the first.
    assert!(held[3] - held[1] < 64 * 8, "{held:?}");
}
