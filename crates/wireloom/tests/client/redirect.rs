//! Redirects, and the headers that another origin receives.

use wireloom::{Connector, Error, Version};

use super::{received_request, serve};

#[tokio::test]
async fn keeps_headers_within_an_origin() {
    let server = serve().await;
    let follower = Connector::new().redirects_max(2).header("Authorization", "Bearer x").header("X-Key", "y");
    let mut socket = follower.connect(&format!("ws://{server}/a/b?to=c?d")).await.unwrap();
    assert_eq!(received_request(&mut socket).await, "/a/c?d Authorization: Bearer x, X-Key: y");
    let follower = Connector::new().redirects_max(1);
    let mut socket = follower.connect(&format!("ws://anna:x@{server}/a?to=/b")).await.unwrap();
    assert_eq!(received_request(&mut socket).await, "/b Authorization: Basic YW5uYTp4");
}

#[tokio::test]
async fn sends_no_secret_to_another_origin() {
    let (here, there) = (serve().await, serve().await);
    let follower = Connector::new()
        .redirects_max(3)
        .origin("http://page.example")
        .subprotocol("chat")
        .header("Authorization", "Bearer x")
        .header("Cookie", "a=b")
        .header("X-Key", "y");
    let mut socket = follower.connect(&format!("ws://{here}/?to=http://{there}/z")).await.unwrap();
    assert_eq!(received_request(&mut socket).await, "/z Origin: http://page.example");
    // Back at the first origin, removed headers are not restored.
    let back = format!("ws://{here}/?to=ws://{there}/?to=ws://{here}/z");
    let mut socket = follower.connect(&back).await.unwrap();
    assert_eq!(received_request(&mut socket).await, "/z Origin: http://page.example");
    let basic = format!("ws://anna:x@{here}/?to=ws://{there}/z");
    let mut socket = Connector::new().redirects_max(1).connect(&basic).await.unwrap();
    assert_eq!(received_request(&mut socket).await, "/z ");
}

#[tokio::test]
async fn limits_redirects() {
    let server = serve().await;
    let follower = Connector::new().redirects_max(2);
    // At the limit, and one more.
    assert!(follower.connect(&format!("ws://{server}/?to=/?to=/z")).await.is_ok());
    assert_eq!(
        follower.connect(&format!("ws://{server}/?to=/?to=/?to=/z")).await.unwrap_err(),
        Error::Redirect
    );
    for location in ["ftp://a/", "ws://u:p@a/", "//", "mailto:a@b"] {
        let url = format!("ws://{server}/?to={location}");
        assert_eq!(follower.connect(&url).await.unwrap_err(), Error::Redirect, "{location}");
    }
}

#[tokio::test]
async fn open_returns_the_response() {
    let server = serve().await;
    let opened = Connector::new().open(&format!("ws://{server}/")).await.unwrap();
    assert_eq!((opened.version, opened.status), (Version::Http11, 101));
    assert_eq!((opened.peer, opened.tls), (Some(server), None));
    assert_eq!(opened.headers.get("upgrade"), Some(&b"websocket"[..]));
}

// `host` and `server_name` name the server of the URL, not the one that it redirects to.
#[tokio::test]
async fn sends_another_host_to_its_own_server_only() {
    let (here, there) = (serve().await, serve().await);
    let follower = Connector::new().redirects_max(2).host("inner.example");
    let host = |opened: &wireloom::client::Opened| {
        opened.request().into_iter().find(|(name, _)| name == "Host").map(|(_, value)| value)
    };
    let same = follower.open(&format!("ws://{here}/?to=/z")).await.unwrap();
    assert_eq!(host(&same).as_deref(), Some("inner.example"));
    let other = follower.open(&format!("ws://{here}/?to=ws://{there}/z")).await.unwrap();
    assert_eq!(host(&other), Some(there.to_string()));
    let back = follower.open(&format!("ws://{here}/?to=ws://{there}/?to=ws://{here}/z")).await.unwrap();
    assert_eq!(host(&back), Some(here.to_string()));
}
