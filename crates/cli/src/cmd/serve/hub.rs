//! The hub of `wireloom serve`.

use std::io;
use std::sync::Arc;

use tracing::{error, info};
use wireloom_hub::engine::{DiskEngine, DiskError, EngineError, MemoryEngine, NatsEngine, RedisEngine};
use wireloom_hub::{ConfigError, Hub, HubConfig};

use super::{Failure, unusable};
use crate::args::{Channels, Serve};
use crate::file;

/// The configuration without a file: everyone may connect and join rooms, which have a short history. The limits are those of a
/// server for trials and for load from the same machine.
const DEFAULT: &str = r#"
[client]
anonymous = true
message_len_max = "1M"
queue_len_max = "4M"

[[namespace]]
name = "rooms"
subscribe = "anyone"
publish = "anyone"
presence = true
presence_access = "anyone"
join_leave = true
history_size = 100
history_ttl = "10m"
history_access = "anyone"
publications_per_s_max = 20_000
publication_bytes_per_s_max = "32M"
"#;

/// The hub that the arguments choose, and whether it has rooms. Dropping the future ends the attempts to reach a broker.
///
/// # Errors
/// The file cannot be read or used, the directory is in use, or NATS or Redis cannot be reached.
pub(super) async fn build(args: &Serve) -> Result<(Hub, bool), Failure> {
    let of_config = args.clone();
    let config = read(move || config(&of_config)).await.map_err(unusable)?;
    let memory = MemoryEngine::new(config.history.channels_max).history_len_max(config.history.len_max);
    let has_rooms = config.namespaces.contains_key("rooms");
    let prefix = config.engine.prefix.clone();
    let builder = Hub::builder().config(config);
    let Channels { data, nats, redis, .. } = &args.channels;
    let builder = match (data, nats, redis) {
        (Some(directory), _, _) => {
            let named = |error: DiskError| match error {
                DiskError::Damaged { .. } => {
                    format!("--data {error}\nSee `wireloom hub check --help`: it sets the file aside")
                }
                error => format!("--data {error}"),
            };
            let directory = directory.clone();
            let engine = read(move || {
                let io =
                    |error: io::Error| DiskError::Io { path: directory.clone(), reason: error.to_string() };
                file::check_folder(&directory).map_err(io)?;
                DiskEngine::open(&directory, memory)
            });
            let engine = engine.await;
            builder.engine(engine.map_err(|error| unusable(named(error)))?)
        }
        // A URL may have a password.
        (None, Some(url), _) => {
            let engine = NatsEngine::connect_with_prefix(url, &prefix).await;
            builder.engine(engine.map_err(|error| failed("--nats", &error))?)
        }
        (None, None, Some(url)) => {
            let engine = RedisEngine::connect_with_prefix(url, &prefix).await;
            builder.engine(engine.map_err(|error| failed("--redis", &error))?)
        }
        (None, None, None) => builder.engine(memory),
    };
    let hub = builder.build().map_err(|error| unusable(named(args, &error)))?;
    Ok((hub, has_rooms))
}

/// Why the option of an engine does not lead to one.
fn failed(option: &str, error: &EngineError) -> Failure {
    let reason = format!("{option}: {error}");
    if matches!(error, EngineError::Refused(_)) { unusable(reason) } else { reason.into() }
}

/// Reads files in a thread of its own: their file system may be slow, or never answer.
async fn read<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> T {
    let read = tokio::task::spawn_blocking(read).await;
    read.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// An error of the configuration, with its file.
fn named(args: &Serve, error: &ConfigError) -> String {
    match &args.channels.hub {
        Some(file) => format!("--hub {}: {error}", file.display()),
        None => error.to_string(),
    }
}

fn config(args: &Serve) -> Result<HubConfig, String> {
    let mut config = match &args.channels.hub {
        Some(file) => crate::cmd::hub::read(file).map_err(|error| format!("--hub {error}"))?,
        None => crate::cmd::hub::with_environment(DEFAULT).map_err(|error| error.to_string())?,
    };
    config.client.allowed_origins.extend(args.allow_origin.iter().cloned());
    Ok(config)
}

/// Reads the file again on SIGHUP. A file that cannot be used changes nothing.
#[cfg(unix)]
pub(super) fn reload_on_hangup(hub: &Hub, args: &Serve) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangups = signal(SignalKind::hangup())?;
    let (hub, args) = (hub.clone(), Arc::new(args.clone()));
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            let read = args.clone();
            // A file system may be slow, or never answer.
            let Ok(config) = tokio::task::spawn_blocking(move || config(&read)).await else { return };
            match config.and_then(|config| hub.reload(config).map_err(|error| named(&args, &error))) {
                Ok(()) => info!("the configuration of channels was loaded again"),
                Err(error) => {
                    error!("the configuration of channels stays as it was: {}", in_one_line(&error))
                }
            }
        }
    });
    Ok(())
}

/// An error without the lines of the file that it shows.
#[cfg(unix)]
fn in_one_line(error: &str) -> String {
    let is_shown =
        |line: &&str| line.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit()).starts_with('|');
    error.lines().filter(|line| !is_shown(line)).map(str::trim_end).collect::<Vec<_>>().join(": ")
}

#[cfg(not(unix))]
pub(super) fn reload_on_hangup(_: &Hub, _: &Serve) -> io::Result<()> {
    Ok(())
}
