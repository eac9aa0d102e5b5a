//! A WebSocket as [`Stream`] and [`Sink`], for the combinators of `futures`.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_sink::Sink;
use wireloom_ws::CloseCode;

use super::message::{OwnedMessage, Payload};
use super::sender::begin_closing;
use super::{Receiver, Sender, WebSocket};
use crate::error::WebSocketError;

impl Stream for Receiver {
    type Item = Result<OwnedMessage, WebSocketError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_recv_owned(cx).map(Result::transpose)
    }
}

impl Sink<OwnedMessage> for Sender {
    type Error = WebSocketError;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), WebSocketError>> {
        Sender::poll_ready(self.get_mut(), cx)
    }

    fn start_send(self: Pin<&mut Self>, message: OwnedMessage) -> Result<(), WebSocketError> {
        Sender::start_send(self.get_mut(), &Payload::from(message))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), WebSocketError>> {
        self.shared.lock().poll_flush(Some((self.waiter, cx)))
    }

    /// Sends the Close frame, with 1000. The receiver gets the peer's answer.
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), WebSocketError>> {
        let mut state = self.shared.lock();
        begin_closing(&mut state, CloseCode::NORMAL, "")?;
        match state.poll_flush(Some((self.waiter, cx))) {
            Poll::Ready(Err(WebSocketError::Closed)) => Poll::Ready(Ok(())),
            flushed => flushed,
        }
    }
}

impl Stream for WebSocket {
    type Item = Result<OwnedMessage, WebSocketError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.poll_recv_owned(cx).map(Result::transpose)
    }
}

impl Sink<OwnedMessage> for WebSocket {
    type Error = WebSocketError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), WebSocketError>> {
        self.sender.poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, message: OwnedMessage) -> Result<(), WebSocketError> {
        self.sender.start_send(&Payload::from(message))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), WebSocketError>> {
        Pin::new(&mut self.sender).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), WebSocketError>> {
        Pin::new(&mut self.sender).poll_close(cx)
    }
}
