//! `--dir`: the files of a directory. `tower-http` answers (ranges, conditions, types); this confines it to the directory.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::future::{Ready, ready};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::StatusCode;
use http::header::{
    CONTENT_TYPE, ETAG, HeaderValue, IF_RANGE, LOCATION, RANGE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tower_http::services::ServeDir;
use tower_http::services::fs::{Backend, DefaultServeDirFallback, File};
use tower_service::Service;
use wireloom::tower::ServiceHandler;
use wireloom::{Body, Handler as _, Request, Response};

use crate::descriptors;

/// RFC 8615: names below it are made to be found.
const WELL_KNOWN: &str = ".well-known";

/// How long a request waits until another file is closed, if all are open that may be: only a slow file system keeps those of reads.
const OPEN_TIMEOUT: Duration = Duration::from_secs(1);

/// The files of a directory.
pub(super) struct Files(ServiceHandler<Typed>);

impl Files {
    /// # Errors
    /// It cannot be read, or is no directory.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let root = dir.canonicalize()?;
        std::fs::read_dir(&root)?;
        let files = ServeDir::with_backend(&root, Confined::new(root.clone()));
        // RFC 9110 §14.2: a server may ignore Range.
        Ok(Self(wireloom::tower::handler(Typed(files.ignore_multi_range_requests(true)))))
    }

    pub(super) async fn answer(&self, request: Request) -> Response {
        self.0.handle(request).await
    }
}

/// The directory, without what is outside of it: links that lead out, and names that begin with a dot.
#[derive(Clone, Debug)]
struct Confined {
    root: PathBuf,
    /// Permits for files that are open until their content is sent, for as long as a client decides.
    keeping: Arc<Semaphore>,
    /// Permits for files that are open for one read.
    reading: Arc<Semaphore>,
}

impl Confined {
    fn new(root: PathBuf) -> Self {
        let allowed = descriptors::files_allowed();
        let [keeping, reading] =
            [allowed / 2, allowed - allowed / 2].map(|permits| Arc::new(Semaphore::new(permits)));
        Self { root, keeping, reading }
    }

    /// The path without links.
    ///
    /// # Errors
    /// It leads out of the directory, is hidden, or is neither a file nor a directory: opening a pipe would wait.
    async fn resolve(self, path: PathBuf) -> io::Result<PathBuf> {
        if self.inside(&path)?.components().any(is_hidden) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let path = tokio::fs::canonicalize(path).await.map_err(|error| match error.kind() {
            // No file has a name that the file system does not allow.
            io::ErrorKind::InvalidFilename => io::ErrorKind::NotFound.into(),
            _ => error,
        })?;
        // The files of volumes of Kubernetes are links into `..data`.
        let is_volume = |name: &Component<'_>| name.as_os_str().as_encoded_bytes().starts_with(b"..");
        if self.inside(&path)?.components().filter(|name| !is_volume(name)).any(is_hidden) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let metadata = tokio::fs::metadata(&path).await?;
        if metadata.is_file() || metadata.is_dir() { Ok(path) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn inside<'a>(&self, path: &'a Path) -> io::Result<&'a Path> {
        path.strip_prefix(&self.root).map_err(|_| io::ErrorKind::NotFound.into())
    }
}

fn is_hidden(component: Component<'_>) -> bool {
    let name = component.as_os_str();
    name.as_encoded_bytes().starts_with(b".") && name != OsStr::new(WELL_KNOWN)
}

type Resolving<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

/// A file of the length that it had when it was opened: a log may grow while it is sent, and its length was sent before.
struct Opened {
    source: Arc<Source>,
    position: u64,
    /// In a mutex, which is never locked, since `tower-http` asks for `Sync`.
    reading: Option<Mutex<Resolving<Vec<u8>>>>,
}

/// Where the content of a file is read.
struct Source {
    path: PathBuf,
    metadata: std::fs::Metadata,
    /// Without one it is opened for each read: a client that does not read holds no descriptor that others need.
    kept: Option<(std::fs::File, OwnedSemaphorePermit)>,
    reading: Arc<Semaphore>,
}

impl Source {
    /// Reads at most `len` bytes, fewer only where the file ends.
    async fn read(self: Arc<Self>, position: u64, len: usize) -> io::Result<Vec<u8>> {
        let permit = match self.kept {
            Some(_) => None,
            None => Some(self.reading.clone().acquire_owned().await.map_err(io::Error::other)?),
        };
        let reading = move || {
            let _permit = permit;
            match &self.kept {
                Some((file, _)) => read_at(file, position, len),
                None => {
                    let file = std::fs::File::open(&self.path)?;
                    if !is_same_file(&file.metadata()?, &self.metadata) {
                        return Err(io::Error::other("the file was replaced while it was sent"));
                    }
                    read_at(&file, position, len)
                }
            }
        };
        tokio::task::spawn_blocking(reading).await.map_err(io::Error::other)?
    }
}

fn read_at(mut file: &std::fs::File, position: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len);
    file.seek(SeekFrom::Start(position))?;
    file.take(len as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether both are of one file. The number of a file that was removed may be used again.
fn is_same_file(one: &std::fs::Metadata, other: &std::fs::Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        if (one.dev(), one.ino()) != (other.dev(), other.ino()) {
            return false;
        }
    }
    one.created().ok() == other.created().ok()
}

impl AsyncRead for Opened {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { source, position, reading } = &mut *self;
        let left = usize::try_from(source.metadata.len().saturating_sub(*position)).unwrap_or(usize::MAX);
        let len = left.min(into.remaining());
        if len == 0 {
            return Poll::Ready(Ok(()));
        }
        let pending =
            reading.get_or_insert_with(|| Mutex::new(Box::pin(source.clone().read(*position, len))));
        let pending = pending.get_mut().unwrap_or_else(PoisonError::into_inner);
        let read = std::task::ready!(pending.as_mut().poll(cx));
        *reading = None;
        let bytes = read?;
        let bytes = &bytes[..bytes.len().min(len)];
        into.put_slice(bytes);
        *position += bytes.len() as u64;
        Poll::Ready(Ok(()))
    }
}

impl AsyncSeek for Opened {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        self.position = match position {
            SeekFrom::Start(position) => position,
            SeekFrom::End(offset) => self.source.metadata.len().saturating_add_signed(offset),
            SeekFrom::Current(offset) => self.position.saturating_add_signed(offset),
        };
        self.reading = None;
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Poll::Ready(Ok(self.position))
    }
}

impl File for Opened {
    type Metadata = std::fs::Metadata;
    type MetadataFuture<'a> = Ready<io::Result<Self::Metadata>>;

    fn metadata(&self) -> Self::MetadataFuture<'_> {
        ready(Ok(self.source.metadata.clone()))
    }
}

impl Backend for Confined {
    type File = Opened;
    type Metadata = std::fs::Metadata;
    type OpenFuture = Resolving<Self::File>;
    type MetadataFuture = Resolving<Self::Metadata>;

    fn open(&self, path: PathBuf) -> Self::OpenFuture {
        let this = self.clone();
        Box::pin(async move {
            let path = this.clone().resolve(path).await?;
            let permit = this.reading.clone().acquire_owned();
            let _permit = timeout(OPEN_TIMEOUT, permit).await?.map_err(io::Error::other)?;
            let file = tokio::fs::File::open(&path).await?;
            let metadata = file.metadata().await?;
            let kept = match this.keeping.try_acquire_owned() {
                Ok(permit) => Some((file.into_std().await, permit)),
                Err(_) => None,
            };
            let source = Source { path, metadata, kept, reading: this.reading };
            Ok(Opened { source: Arc::new(source), position: 0, reading: None })
        })
    }

    fn metadata(&self, path: PathBuf) -> Self::MetadataFuture {
        let resolving = self.clone().resolve(path);
        Box::pin(async move { tokio::fs::metadata(resolving.await?).await })
    }
}

/// Whether `tower-http` understands this Range. It refuses all others, of which RFC 9110 §14.2 has those of another unit ignored.
fn is_range_of_bytes(range: &HeaderValue) -> bool {
    /// RFC 9110 §14.1.2: a number may be larger than any file.
    const DIGITS_MAX: usize = 18;
    let ranges = range.as_bytes().strip_prefix(b"bytes=");
    ranges.is_some_and(|ranges| {
        ranges.split(|byte| !byte.is_ascii_digit()).all(|digits| digits.len() <= DIGITS_MAX)
    })
}

/// Adds to `tower-http`: If-Range, which it does not know; the encoding of texts, which browsers would guess; and that they must not guess
/// types.
#[derive(Clone)]
struct Typed(ServeDir<DefaultServeDirFallback, Confined>);

impl Service<http::Request<Body>> for Typed {
    type Response = <ServeDir<DefaultServeDirFallback, Confined> as Service<http::Request<Body>>>::Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let validator = request.headers_mut().remove(IF_RANGE);
        let range = request.headers_mut().remove(RANGE).filter(is_range_of_bytes);
        let mut whole = None;
        if let Some(range) = range {
            // RFC 9110 §13.1.5: the whole file, if it is not the one of which the client has a part. A date proves nothing within its
            // second.
            whole = validator.map(|tag| {
                let mut whole = http::Request::new(Body::empty());
                whole.method_mut().clone_from(request.method());
                whole.uri_mut().clone_from(request.uri());
                whole.headers_mut().clone_from(request.headers());
                (tag, self.0.call(whole))
            });
            request.headers_mut().insert(RANGE, range);
        }
        let answering = self.0.call(request);
        Box::pin(async move {
            let mut response = answering.await?;
            if let (Some((tag, whole)), StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE) =
                (whole, response.status())
                && response.headers().get(ETAG) != Some(&tag)
            {
                drop(response);
                response = whole.await?;
            }
            // All files that may be open are, or the file system fails.
            if response.status() == StatusCode::INTERNAL_SERVER_ERROR {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            let headers = response.headers_mut();
            headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            // `//name/` would be another host, and its path is what the client asked for.
            if let Some(location) = headers.get(LOCATION).filter(|value| value.as_bytes().starts_with(b"//"))
            {
                let path = format!("/{}", location.to_str().unwrap_or_default().trim_start_matches('/'));
                headers
                    .insert(LOCATION, HeaderValue::from_str(&path).unwrap_or(HeaderValue::from_static("/")));
            }
            let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).filter(|value| {
                (value.starts_with("text/") || *value == "application/json") && !value.contains(';')
            });
            if let Some(Ok(typed)) =
                text.map(|value| HeaderValue::from_str(&format!("{value}; charset=utf-8")))
            {
                headers.insert(CONTENT_TYPE, typed);
            }
            Ok(response)
        })
    }
}
