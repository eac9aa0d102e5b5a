//! RPC through an HTTP endpoint of the application, with the requests and responses of Centrifugo's RPC proxy.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use wireloom::client::Request;
use wireloom::{Connector, Error};

use crate::config::RpcConfig;
use crate::hooks::{Refusal, RpcEvent};
use crate::protocol::{Disconnect, Encoding, ErrorCode};

/// The maximum length of a response, in bytes.
const RESPONSE_LEN_MAX: usize = 1 << 20;

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// The reply carries an error.
    Refused(Refusal),
    /// The application ends the connection.
    Disconnected(Disconnect),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ErrorCode> for Failure {
    fn from(code: ErrorCode) -> Self {
        Self::Refused(code.into())
    }
}

#[derive(Serialize)]
struct Call<'a> {
    client: &'a str,
    transport: &'static str,
    protocol: &'static str,
    encoding: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    user: &'a str,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    b64data: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    result: Option<Outcome>,
    error: Option<AnswerError>,
    disconnect: Option<AnswerDisconnect>,
}

#[derive(Default, Deserialize)]
struct Outcome {
    data: Option<Box<RawValue>>,
    b64data: Option<String>,
}

#[derive(Deserialize)]
struct AnswerError {
    code: u32,
    #[serde(default)]
    message: String,
    #[serde(default)]
    temporary: bool,
}

#[derive(Deserialize)]
struct AnswerDisconnect {
    code: u16,
    #[serde(default)]
    reason: String,
}

/// Calls a method of the application.
pub(crate) async fn call(config: &RpcConfig, encoding: Encoding, event: &RpcEvent) -> Result<Bytes, Failure> {
    let url = config.url.as_deref().ok_or(ErrorCode::MethodNotFound)?;
    let json = serde_json::from_slice::<&RawValue>(&event.data).ok();
    let (protocol, is_json) = match encoding {
        Encoding::Json => ("json", true),
        Encoding::Protobuf => ("protobuf", false),
    };
    let call = Call {
        client: &event.client,
        transport: "websocket",
        protocol,
        encoding: if is_json { "json" } else { "binary" },
        user: &event.user,
        method: &event.method,
        data: json,
        b64data: (json.is_none() && !event.data.is_empty()).then(|| STANDARD.encode(&event.data)),
    };
    let body = serde_json::to_vec(&call).unwrap_or_default();
    let request = Request::post(url, body).header("content-type", "application/json");
    let answered = tokio::time::timeout(config.timeout, exchange(request)).await;
    let answer = match answered {
        Ok(Ok(answer)) => answer,
        Ok(Err(reason)) => return Err(failed(url, &reason)),
        Err(_) => return Err(failed(url, "it took too long")),
    };
    if let Some(AnswerDisconnect { code, reason }) = answer.disconnect {
        return Err(Failure::Disconnected(Disconnect::Custom { code, reason }));
    }
    if let Some(AnswerError { code, message, temporary }) = answer.error {
        return Err(Refusal { code, message, temporary }.into());
    }
    let Outcome { data, b64data } = answer.result.unwrap_or_default();
    match b64data {
        Some(text) => {
            STANDARD.decode(text).map(Bytes::from).map_err(|_| failed(url, "b64data is not base64"))
        }
        None => Ok(data.map(|data| Bytes::from(String::from(Box::<str>::from(data)))).unwrap_or_default()),
    }
}

async fn exchange(request: Request) -> Result<Answer, String> {
    let describe = |error: Error| error.to_string();
    let response = Connector::new().request(request).await.map_err(describe)?;
    if response.status != 200 {
        return Err(format!("status {}", response.status));
    }
    let body = response.body.with_len_max(RESPONSE_LEN_MAX).bytes().await.map_err(describe)?;
    serde_json::from_slice(&body).map_err(|error| error.to_string())
}

fn failed(url: &str, reason: &str) -> Failure {
    tracing::warn!(url, reason, "the RPC endpoint failed");
    ErrorCode::Internal.into()
}
