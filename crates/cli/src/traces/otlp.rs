//! Sends the spans of the hub to a collector by OTLP over HTTP, as the standard environment variables say.

mod losses;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry::global;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use tokio::runtime::Handle;
use wireloom::Connector;
use wireloom::client::Request;

use losses::{CountedExporter, CountedProcessor, Losses};

/// How long the last spans may take to leave.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The exporter while the process serves.
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    losses: Arc<Losses>,
}

/// Begins to trace, if the environment names a collector. Called within the runtime.
///
/// # Errors
/// A text: a variable of the environment cannot be used.
pub(crate) fn start() -> Result<Option<Traces>, String> {
    let Some(endpoint) = super::endpoint() else { return Ok(None) };
    let losses = Arc::<Losses>::default();
    let (connector, runtime) = (Connector::new(), Handle::current());
    let client = Client { connector, runtime, losses: losses.clone() };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_protocol(Protocol::HttpBinary)
        .build()
        .map_err(|error| format!("{endpoint}: {error}"))?;
    let mut resource = Resource::builder();
    if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name("wireloom");
    }
    let config = BatchConfigBuilder::default().with_max_queue_size(losses.queue_max).build();
    let exporter = CountedExporter { exporter, losses: losses.clone() };
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
    let processor = CountedProcessor { processor, losses: losses.clone() };
    let provider =
        SdkTracerProvider::builder().with_span_processor(processor).with_resource(resource.build()).build();
    global::set_tracer_provider(provider.clone());
    global::set_text_map_propagator(TraceContextPropagator::new());
    Ok(Some(Traces { provider, losses }))
}

impl Traces {
    /// Sends what has not been sent.
    pub(crate) async fn shut_down(self) {
        let Self { provider, losses } = self;
        let ended =
            tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT)).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "the last spans were not sent");
        }
        losses.log();
    }
}

/// The client of this project, for the exporter, which runs in a thread of its own.
#[derive(Debug)]
struct Client {
    connector: Connector,
    runtime: Handle,
    losses: Arc<Losses>,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, HttpError> {
        self.send(request).await.inspect_err(|error| self.losses.set_cause(error))
    }
}

impl Client {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let mut sent = Request::post(head.uri.to_string(), body);
        for (name, value) in &head.headers {
            sent = sent.header(name.as_str(), value.as_bytes());
        }
        let connector = self.connector.clone();
        let exchange = async move {
            let response = connector.request(sent).await?;
            let status = response.status;
            Ok::<_, wireloom::Error>((status, response.body.with_len_max(RESPONSE_LEN_MAX).bytes().await?))
        };
        // The exporter has one thread, which a silent collector would stop for good.
        let sending = self.runtime.spawn(async { tokio::time::timeout(EXCHANGE_TIME_MAX, exchange).await });
        let (status, body) = sending.await?.map_err(|_| "the collector did not answer in time")??;
        Ok(http::Response::builder().status(status).body(body)?)
    }
}

/// How long a collector may take to answer. The spans of a longer exchange are dropped.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(10);

/// The maximum length of a collector's answer.
const RESPONSE_LEN_MAX: usize = 1 << 20;
