//! Servers and clients at Unix sockets.

use std::io::ErrorKind;
use std::path::PathBuf;

use wireloom::client::{Pool, Request};
use wireloom::http::Response;
use wireloom::server::bind_unix;
use wireloom::{Connector, Server};

/// A path for a socket that no other test uses, in a folder of its own.
fn socket_path(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("wireloom-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder.join("socket")
}

#[tokio::test]
async fn websockets_and_requests_over_a_unix_socket() {
    let path = socket_path("unix");
    tokio::spawn(Server::new(bind_unix(&path).unwrap()).serve(super::handle));
    let path_text = path.to_str().unwrap();
    let connector = Connector::new().user_agent(None);
    let mut socket = connector.connect(&format!("ws+unix:{path_text}:/chat?a=1")).await.unwrap();
    assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("/chat?a=1 "));
    // A redirect stays at the socket.
    let follower = connector.redirects_max(1);
    let mut socket = follower.connect(&format!("ws+unix://{path_text}:/x?to=/y")).await.unwrap();
    assert_eq!(socket.recv().await.unwrap().unwrap().as_text(), Some("/y "));
    let url = format!("http+unix:{path_text}:/");
    let response = Connector::new().request(Request::get(&url)).await.unwrap();
    assert!(matches!(response.status, 400 | 426));
    let http2 = Connector::new().connect_http2(&url).await.unwrap();
    let status = http2.request(Request::get("/z")).await.unwrap().status;
    assert!(matches!(status, 400 | 426));

    let used = bind_unix(&path).unwrap_err();
    assert_eq!(used.kind(), ErrorKind::AddrInUse);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[tokio::test]
async fn a_socket_that_was_left_behind_is_replaced() {
    let path = socket_path("left");
    drop(bind_unix(&path).unwrap());
    assert!(path.exists());
    drop(bind_unix(&path).unwrap());
    // A file that is no socket is not replaced.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "a file").unwrap();
    assert!(bind_unix(&path).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

// Programs that own a temporary folder hold its lock, for as long as they run.
#[tokio::test]
async fn a_lock_on_the_folder_does_not_prevent_a_start() {
    let path = socket_path("locked");
    drop(bind_unix(&path).unwrap());
    let folder = std::fs::File::open(path.parent().unwrap()).unwrap();
    folder.lock().unwrap();
    drop(bind_unix(&path).unwrap());
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[tokio::test]
async fn a_listener_with_a_full_queue_is_in_use() {
    let path = socket_path("full");
    let socket = tokio::net::UnixSocket::new_stream().unwrap();
    socket.bind(&path).unwrap();
    let _listener = socket.listen(0).unwrap();
    let mut queue = Vec::new();
    while let Ok(stream) = tokio::net::UnixStream::connect(&path).await {
        queue.push(stream);
    }
    assert_eq!(bind_unix(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[tokio::test]
async fn kept_connections_belong_to_one_socket() {
    let paths = ["first", "second"].map(socket_path);
    for (path, name) in paths.iter().zip(["first", "second"]) {
        let server = Server::new(bind_unix(path).unwrap());
        tokio::spawn(server.serve(move |_: wireloom::Request| async move { Response::text(200, name) }));
    }
    // A lifetime that the clock cannot represent is forever.
    let pool = Pool::with_limits(Connector::new(), 4, std::time::Duration::MAX);
    for (path, name) in paths.iter().zip(["first", "second"]).chain(paths.iter().zip(["first", "second"])) {
        let mut response =
            pool.request(Request::get(format!("http+unix:{}:/", path.display()))).await.unwrap();
        assert_eq!(response.body.bytes().await.unwrap(), name);
    }
    assert!(format!("{pool:?}").contains("idle: 2"), "{pool:?}");
    for path in paths {
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}

// Each would remove the socket of the one before it, if it had found what that one replaced.
#[tokio::test]
async fn one_of_many_servers_replaces_a_socket_that_was_left_behind() {
    let path = socket_path("raced");
    for _ in 0..200 {
        drop(bind_unix(&path).unwrap());
        let barrier = std::sync::Barrier::new(4);
        let runtime = tokio::runtime::Handle::current();
        let bound: Vec<_> = std::thread::scope(|scope| {
            let bind = || {
                let _entered = runtime.enter();
                barrier.wait();
                bind_unix(&path)
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for refused in bound.iter().filter_map(|bound| bound.as_ref().err()) {
            assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        }
        assert_eq!(bound.iter().filter(|bound| bound.is_ok()).count(), 1);
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    }
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}
