//! A gRPC service and its client: tonic encodes the calls, Wireloom's server and client carry them over HTTP/2.
//!
//! ```sh
//! cargo run -p wireloom --features tower --example tonic
//! ```
//!
//! tonic-build generates what `Greeter` and `GreeterClient` contain here from a `.proto` file, and needs protoc for it. Its services are
//! mounted in the same way: `wireloom::tower::handler(GreeterServer::new(greeter))`.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::TryStreamExt as _;
use futures_util::stream::{self, Stream};
use http::uri::PathAndQuery;
use http_body_util::BodyExt as _;
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tower_service::Service;
use wireloom::client::Http2;
use wireloom::{Body, Connector, Server};

/// `message HelloRequest { string name = 1; }`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HelloRequest {
    #[prost(string, tag = "1")]
    name: String,
}

/// `message HelloReply { string text = 1; }`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HelloReply {
    #[prost(string, tag = "1")]
    text: String,
}

const SAY_HELLO: &str = "/example.Greeter/SayHello";
const COUNT_LETTERS: &str = "/example.Greeter/CountLetters";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Replies = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

/// `rpc SayHello(HelloRequest) returns (HelloReply)`
struct SayHello;

impl UnaryService<HelloRequest> for SayHello {
    type Response = HelloReply;
    type Future = BoxFuture<Result<Response<HelloReply>, Status>>;

    fn call(&mut self, request: Request<HelloRequest>) -> Self::Future {
        Box::pin(async move {
            match request.into_inner().name {
                name if name.is_empty() => Err(Status::invalid_argument("the name is empty")),
                name => Ok(Response::new(HelloReply { text: format!("Hello, {name}!") })),
            }
        })
    }
}

/// `rpc CountLetters(HelloRequest) returns (stream HelloReply)`
struct CountLetters;

impl ServerStreamingService<HelloRequest> for CountLetters {
    type Response = HelloReply;
    type ResponseStream = Replies;
    type Future = BoxFuture<Result<Response<Replies>, Status>>;

    fn call(&mut self, request: Request<HelloRequest>) -> Self::Future {
        let letters: Vec<char> = request.into_inner().name.chars().collect();
        let replies = letters.into_iter().enumerate();
        let replies = replies.map(|(at, letter)| Ok(HelloReply { text: format!("{}: {letter}", at + 1) }));
        Box::pin(async move { Ok(Response::new(Box::pin(stream::iter(replies)) as Replies)) })
    }
}

/// The service. Cloned for every call.
#[derive(Clone)]
struct Greeter;

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(codec::<HelloReply, HelloRequest>());
            Ok(match request.uri().path() {
                SAY_HELLO => grpc.unary(SayHello, request).await,
                COUNT_LETTERS => grpc.server_streaming(CountLetters, request).await,
                _ => Status::unimplemented("there is no such method").into_http(),
            })
        })
    }
}

/// Serves gRPC, and everything else that Wireloom's server does, on one port.
pub(crate) async fn serve(server: Server) -> std::io::Result<()> {
    server.serve(wireloom::tower::handler(Greeter)).await
}

/// The calls of [`Greeter`] over one HTTP/2 connection, also at the same time.
#[derive(Clone)]
pub(crate) struct GreeterClient(tonic::client::Grpc<Channel>);

impl GreeterClient {
    pub(crate) async fn connect(url: &str) -> Result<Self, wireloom::Error> {
        let http2 = Connector::new().connect_http2(url).await?;
        Ok(Self(tonic::client::Grpc::new(Channel(http2))))
    }

    pub(crate) async fn say_hello(&mut self, name: &str) -> Result<String, Status> {
        let request = Request::new(HelloRequest { name: name.into() });
        let path = PathAndQuery::from_static(SAY_HELLO);
        let reply = self.0.unary(request, path, codec::<HelloRequest, HelloReply>()).await?;
        Ok(reply.into_inner().text)
    }

    pub(crate) async fn count_letters(&mut self, name: &str) -> Result<Streaming<HelloReply>, Status> {
        let request = Request::new(HelloRequest { name: name.into() });
        let path = PathAndQuery::from_static(COUNT_LETTERS);
        Ok(self.0.server_streaming(request, path, codec::<HelloRequest, HelloReply>()).await?.into_inner())
    }
}

impl HelloReply {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// A connection of Wireloom's client as the service over which tonic sends its calls.
#[derive(Clone)]
struct Channel(Http2);

impl Service<http::Request<tonic::body::Body>> for Channel {
    type Response = http::Response<Body>;
    type Error = Status;
    type Future = BoxFuture<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let http2 = self.0.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let mut request = wireloom::client::Request::new(parts.method.as_str(), parts.uri.path());
            for (name, value) in &parts.headers {
                request = request.header(name.as_str(), value);
            }
            let body = body.into_data_stream().map_err(std::io::Error::other);
            let request = request.with_body(Body::from_stream(body));
            let response = http2.request(request).await.map_err(unavailable)?;
            let mut answer = http::Response::builder().status(response.status);
            for (name, value) in response.headers.iter() {
                answer = answer.header(name, value);
            }
            answer.body(response.body).map_err(unavailable)
        })
    }
}

fn unavailable(error: impl std::error::Error) -> Status {
    Status::unavailable(error.to_string())
}

/// Protocol Buffers by prost, as the crate tonic-prost does it.
struct ProstCodec<E, D>(PhantomData<(E, D)>);

fn codec<E, D>() -> ProstCodec<E, D> {
    ProstCodec(PhantomData)
}

impl<E: Message + 'static, D: Message + Default + 'static> Codec for ProstCodec<E, D> {
    type Encode = E;
    type Decode = D;
    type Encoder = ProstCodec<E, D>;
    type Decoder = ProstCodec<E, D>;

    fn encoder(&mut self) -> Self::Encoder {
        codec()
    }

    fn decoder(&mut self) -> Self::Decoder {
        codec()
    }
}

impl<E: Message, D> Encoder for ProstCodec<E, D> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, message: E, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(into).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<E, D: Message + Default> Decoder for ProstCodec<E, D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        D::decode(from).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

#[tokio::main]
#[allow(dead_code, reason = "the tests call what it calls")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", server.local_addr()?);
    tokio::spawn(serve(server));
    let mut client = GreeterClient::connect(&url).await?;
    println!("{}", client.say_hello("Ada").await?);
    let mut replies = client.count_letters("Ada").await?;
    while let Some(reply) = replies.message().await? {
        println!("{}", reply.text());
    }
    Ok(())
}
