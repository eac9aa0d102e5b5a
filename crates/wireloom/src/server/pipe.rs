//! The body of an HTTP/1.1 request on its way from the connection, which reads it, to whoever asks for it: nothing is read
//! before it is asked for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};

use crate::error::Error;
use crate::headers::Headers;

#[derive(Default)]
struct Pipe {
    content: BytesMut,
    ended: bool,
    failed: Option<Error>,
    trailers: Option<Headers>,
    /// Someone waits for content.
    wanted: bool,
    /// Nobody ever will again.
    gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// Where content comes out.
pub(crate) struct PipeReader(Arc<Mutex<Pipe>>);

/// Where it goes in.
pub(super) struct PipeWriter(Arc<Mutex<Pipe>>);

/// What the reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Content,
    /// Nobody reads any more.
    Nothing,
}

pub(super) fn pipe() -> (PipeWriter, PipeReader) {
    let pipe = Arc::new(Mutex::default());
    (PipeWriter(pipe.clone()), PipeReader(pipe))
}

fn lock(pipe: &Mutex<Pipe>) -> MutexGuard<'_, Pipe> {
    pipe.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PipeReader {
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        let mut pipe = lock(&self.0);
        if !pipe.content.is_empty() {
            return Poll::Ready(Some(Ok(pipe.content.split().freeze())));
        }
        if let Some(error) = &pipe.failed {
            return Poll::Ready(Some(Err(error.clone())));
        }
        if pipe.ended {
            return Poll::Ready(None);
        }
        pipe.wanted = true;
        pipe.reader = Some(cx.waker().clone());
        let writer = pipe.writer.take();
        drop(pipe);
        writer.into_iter().for_each(Waker::wake);
        Poll::Pending
    }

    pub(crate) fn trailers(&mut self) -> Option<Headers> {
        lock(&self.0).trailers.take()
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        let mut pipe = lock(&self.0);
        pipe.gone = true;
        pipe.content = BytesMut::new();
        let writer = pipe.writer.take();
        drop(pipe);
        writer.into_iter().for_each(Waker::wake);
    }
}

impl PipeWriter {
    /// Ready when content is wanted, or never will be.
    pub(super) fn poll_wanted(&self, cx: &mut Context<'_>) -> Poll<Wanted> {
        let mut pipe = lock(&self.0);
        if pipe.gone {
            return Poll::Ready(Wanted::Nothing);
        }
        if pipe.wanted {
            return Poll::Ready(Wanted::Content);
        }
        pipe.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(super) fn is_gone(&self) -> bool {
        lock(&self.0).gone
    }

    /// Puts in what `work` adds to the content.
    pub(super) fn put<T>(&self, work: impl FnOnce(&mut BytesMut) -> T) -> T {
        let mut pipe = lock(&self.0);
        let result = work(&mut pipe.content);
        if pipe.gone {
            pipe.content = BytesMut::new();
        }
        let arrived = !pipe.content.is_empty();
        pipe.wanted &= !arrived;
        let reader = if arrived { pipe.reader.take() } else { None };
        drop(pipe);
        reader.into_iter().for_each(Waker::wake);
        result
    }

    /// That was all.
    pub(super) fn end(&self, trailers: Headers) {
        self.finish(|pipe| {
            pipe.ended = true;
            pipe.trailers = Some(trailers).filter(|trailers| !trailers.is_empty());
        });
    }

    /// There will be no more, and this is why.
    pub(super) fn fail(&self, error: Error) {
        self.finish(|pipe| {
            pipe.failed.get_or_insert(error);
        });
    }

    fn finish(&self, work: impl FnOnce(&mut Pipe)) {
        let mut pipe = lock(&self.0);
        work(&mut pipe);
        let reader = pipe.reader.take();
        drop(pipe);
        reader.into_iter().for_each(Waker::wake);
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        if !lock(&self.0).ended {
            self.fail(Error::Cut);
        }
    }
}
