//! A pipe in memory whose state is behind mutexes that shuttle knows.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Tunnel;
use crate::sync::{Arc, Mutex};

/// One direction.
#[derive(Default)]
struct Pipe {
    bytes: Vec<u8>,
    len_max: usize,
    is_closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// One end of a pipe. The other one is closed when it is dropped.
pub(crate) struct End {
    read: Arc<Mutex<Pipe>>,
    write: Arc<Mutex<Pipe>>,
}

/// A pipe that holds at most `len_max` bytes in each direction.
pub(crate) fn pipe(len_max: usize) -> (End, End) {
    let [up, down] = [(); 2].map(|()| Arc::new(Mutex::new(Pipe { len_max, ..Pipe::default() })));
    (End { read: down.clone(), write: up.clone() }, End { read: up, write: down })
}

impl AsyncRead for End {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.read.lock().unwrap();
        if pipe.bytes.is_empty() && !pipe.is_closed {
            pipe.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let len = pipe.bytes.len().min(buf.remaining());
        buf.put_slice(&pipe.bytes[..len]);
        pipe.bytes.drain(..len);
        let writer = pipe.writer.take();
        drop(pipe);
        writer.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut pipe = self.write.lock().unwrap();
        if pipe.is_closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let len = bytes.len().min(pipe.len_max - pipe.bytes.len());
        if len == 0 {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        pipe.bytes.extend_from_slice(&bytes[..len]);
        let reader = pipe.reader.take();
        drop(pipe);
        reader.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        close(&self.write);
        Poll::Ready(Ok(()))
    }
}

impl Tunnel for End {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.read.lock().unwrap();
        if pipe.bytes.is_empty() && !pipe.is_closed {
            pipe.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn is_disconnected(&self) -> bool {
        false
    }
}

fn close(pipe: &Mutex<Pipe>) {
    let mut pipe = pipe.lock().unwrap();
    pipe.is_closed = true;
    let wakers = [pipe.reader.take(), pipe.writer.take()];
    drop(pipe);
    wakers.into_iter().flatten().for_each(Waker::wake);
}

impl Drop for End {
    fn drop(&mut self) {
        close(&self.read);
        close(&self.write);
    }
}
