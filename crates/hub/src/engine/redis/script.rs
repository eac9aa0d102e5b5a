//! The scripts that Redis runs, each as one step, and the keys that they use.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prost::Message as _;
use redis::Script;

use super::connection::{Connection, TIMEOUT};
use super::unavailable;
use crate::config::RecoveryMode;
use crate::engine::{EngineError, IDEMPOTENCY_TTL};
use crate::history::{Position, Recovery, Retention};
use crate::protocol::Publication;
use crate::random::token;

/// The run of the server, and whether nothing was lost since another one: in an earlier run of the process, or in an earlier time as master,
/// because what another master did not receive is lost. A master that never was a replica in this run has lost nothing when its replication
/// ID changes: it does so when its first replica comes, and some time after the last has left.
pub(super) const RUN: &str = r"
local info = redis.call('INFO', 'server', 'replication')
local run_id = string.match(info, 'run_id:(%x+)')
local run = run_id .. ' ' .. string.match(info, 'master_replid:(%x+)')
local function goes_on(before)
  return before == run or before and string.sub(before, 1, #run_id) == run_id
    and string.match(info, 'master_replid2:0+%s')
    and string.match(redis.call('INFO', 'stats'), 'total_net_repl_input_bytes:0%s')
end
";

/// The time of the server, in milliseconds.
const NOW: &str = r"
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
";

/// Does nothing at or after the deadline of the [invocation](Connection::invoke_in_time), the last argument; after [`NOW`]. Whether it does
/// or not, the answer begins with the time.
const IN_TIME: &str = r"
if now >= tonumber(ARGV[#ARGV]) then return {now} end
";

/// Reads the position of a channel, after [`RUN`]. Begins a new history if there is none, or if it may have lost something.
/// KEYS: position, stream. `ARGV[1]`: the epoch of a new history.
const POSITION: &str = r"
local position = redis.call('HMGET', KEYS[1], 'epoch', 'offset', 'run')
local epoch, top = position[1], tonumber(position[2])
if epoch and position[3] ~= run and goes_on(position[3]) then
  position[3] = run
  redis.call('HSET', KEYS[1], 'run', run)
end
if not epoch or position[3] ~= run then
  redis.call('DEL', KEYS[2])
  epoch, top = ARGV[1], 0
  redis.call('HSET', KEYS[1], 'epoch', epoch, 'offset', 0, 'run', run)
end
";

/// KEYS: position, stream, key. ARGV: new epoch, payload, size, TTL and TTL of the position in milliseconds, the subject of
/// announcements, TTL of the key in seconds or 0, the command that announces, the deadline. The history keeps what the node with the largest size and TTLs asks for.
static PUBLISH: LazyLock<Script> = LazyLock::new(|| {
    let publish = r"
if ARGV[7] ~= '0' then
  local known = redis.call('HMGET', KEYS[3], 'epoch', 'offset')
  if known[1] == epoch then return {now, known[1], tonumber(known[2])} end
end
top = top + 1
redis.call('HSET', KEYS[1], 'offset', top)
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[5]) then redis.call('PEXPIRE', KEYS[1], ARGV[5]) end
local size, ttl = ARGV[3], ARGV[4]
local kept = redis.call('HMGET', KEYS[1], 'size', 'ttl')
if kept[1] and tonumber(kept[1]) > tonumber(size) then size = kept[1] end
if kept[2] and tonumber(kept[2]) > tonumber(ttl) then ttl = kept[2] end
if kept[1] ~= size or kept[2] ~= ttl then redis.call('HSET', KEYS[1], 'size', size, 'ttl', ttl) end
redis.call('XADD', KEYS[2], 'MAXLEN', size, top .. '-0', 't', now, 'd', ARGV[2])
redis.call('PEXPIRE', KEYS[2], ttl)
if ARGV[7] ~= '0' then
  redis.call('HSET', KEYS[3], 'epoch', epoch, 'offset', top)
  redis.call('EXPIRE', KEYS[3], ARGV[7])
end
redis.call(ARGV[8], ARGV[6], 'p' .. epoch .. ' ' .. top .. ' ' .. ARGV[2])
return {now, epoch, top}
";
    Script::new(&format!("{NOW}{IN_TIME}{RUN}{POSITION}{publish}"))
});

/// KEYS: position, stream. ARGV: new epoch, XRANGE or XREVRANGE, the offsets after and before which to read, count, size, TTL,
/// TTL of the position, and that of one before the first publication, all in milliseconds; the length of publications up to which to
/// read, but one in any case, and one more.
///
/// The stream may have more than this node promises, and older entries: the count is that of what is within size and TTL. Offsets are
/// consecutive, and times grow with them, so that the first one is found by halves. Returns the position, and two texts for each entry:
/// its id and its payload.
static READ: LazyLock<Script> = LazyLock::new(|| {
    let read = r"
local position_ttl = ARGV[8]
if top == 0 then position_ttl = ARGV[9] end
if redis.call('PTTL', KEYS[1]) < tonumber(position_ttl) then redis.call('PEXPIRE', KEYS[1], position_ttl) end
local found = {epoch, tostring(top)}
if ARGV[5] == '0' then return found end
local kept = math.min(redis.call('XLEN', KEYS[2]), tonumber(ARGV[6]))
local first, last = math.max(tonumber(ARGV[3]), top - kept) + 1, math.min(tonumber(ARGV[4]) - 1, top)
local live = last + 1
while first < live do
  local middle = math.floor((first + live) / 2)
  local entry = redis.call('XRANGE', KEYS[2], middle .. '-0', middle .. '-0')[1]
  if entry and entry[2][2] + ARGV[7] > now then live = middle else first = middle + 1 end
end
if first > last then return found end
local count, left = tonumber(ARGV[5]), tonumber(ARGV[10])
while count > 0 and first <= last do
  local from, to = first .. '-0', last .. '-0'
  if ARGV[2] == 'XREVRANGE' then from, to = to, from end
  local entries = redis.call(ARGV[2], KEYS[2], from, to, 'COUNT', math.min(count, 64))
  for _, entry in ipairs(entries) do
    left = left - #entry[2][4]
    found[#found + 1] = entry[1]
    found[#found + 1] = entry[2][4]
    if left < 0 and #found > 4 then return found end
  end
  if #entries == 0 then return found end
  count = count - #entries
  local read = tonumber(string.match(entries[#entries][1], '^%d+'))
  if ARGV[2] == 'XREVRANGE' then last = read - 1 else first = read + 1 end
end
return found
";
    Script::new(&format!("{NOW}{RUN}{POSITION}{read}"))
});

/// KEYS: position, stream. ARGV: the subject of announcements, the command that announces, the deadline.
static REMOVE: LazyLock<Script> = LazyLock::new(|| {
    let remove = "redis.call('DEL', KEYS[1], KEYS[2])\nredis.call(ARGV[2], ARGV[1], 'x')\nreturn {now, 1}";
    Script::new(&format!("{NOW}{IN_TIME}{remove}"))
});

/// Removes at most ten expired entries as well, because a channel's presence may never be read.
/// KEYS: infos, expiries. ARGV: client, info, TTL in milliseconds.
static ADD_PRESENCE: LazyLock<Script> = LazyLock::new(|| {
    let add = r"
for _, client in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 10)) do
  redis.call('HDEL', KEYS[1], client)
  redis.call('ZREM', KEYS[2], client)
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1";
    Script::new(&format!("{NOW}{add}"))
});

/// KEYS: infos, expiries. ARGV: client.
static REMOVE_PRESENCE: LazyLock<Script> = LazyLock::new(|| {
    Script::new("redis.call('HDEL', KEYS[1], ARGV[1])\nredis.call('ZREM', KEYS[2], ARGV[1])\nreturn 1")
});

/// False if clients and infos have more bytes than the limit.
/// KEYS: infos, expiries. ARGV: the limit.
static PRESENCE: LazyLock<Script> = LazyLock::new(|| {
    let presence = r"
for _, client in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('HDEL', KEYS[1], client)
  redis.call('ZREM', KEYS[2], client)
end
local infos, room = {}, tonumber(ARGV[1])
for first = 0, redis.call('ZCARD', KEYS[2]) - 1, 100 do
  local clients = redis.call('ZRANGE', KEYS[2], first, first + 99)
  for i, info in ipairs(redis.call('HMGET', KEYS[1], unpack(clients))) do
    if info then
      room = room - #clients[i] - #info
      if room < 0 then return false end
      infos[#infos + 1] = info
    end
  end
end
return infos";
    Script::new(&format!("{NOW}{presence}"))
});

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).clamp(1, i64::MAX as u64 / 2)
}

/// How long a publication without a key is remembered that may be sent again: longer than a command may take.
const REPEAT_TTL: Duration = TIMEOUT.saturating_mul(2);

/// A history that is followed is read every ten seconds, and must not be lost in between.
const POSITION_TTL_MIN: Duration = Duration::from_secs(60);

/// How long a history without publications is kept that is followed: nodes may be disconnected from Redis.
const FOLLOWED_TTL: Duration = Duration::from_secs(3_600);

fn position_ttl(retention: Retention) -> u64 {
    milliseconds(retention.ttl.max(retention.position_ttl).max(POSITION_TTL_MIN))
}

pub(super) async fn publish(
    connection: &Connection,
    channel: &str,
    payload: &[u8],
    retention: Retention,
    idempotency_key: &str,
) -> Result<Position, EngineError> {
    let (remembered, key_ttl) = if !idempotency_key.is_empty() {
        // Encoded, because what follows a brace would be the key of another channel.
        (format!("k:{}", URL_SAFE_NO_PAD.encode(idempotency_key)), IDEMPOTENCY_TTL)
    } else if connection.repeats() {
        (format!("r:{}{}", token(), token()), REPEAT_TTL)
    } else {
        ("k:".to_owned(), Duration::ZERO)
    };
    let script = |deadline: i64| {
        let mut script = PUBLISH.prepare_invoke();
        script
            .key(connection.names.key(channel, "m"))
            .key(connection.names.key(channel, "s"))
            .key(connection.names.key(channel, &remembered))
            .arg(token())
            .arg(payload)
            .arg(retention.size)
            .arg(milliseconds(retention.ttl))
            .arg(position_ttl(retention))
            .arg(connection.names.subject(channel))
            .arg(key_ttl.as_secs())
            .arg(connection.announce_command())
            .arg(deadline);
        script
    };
    let (epoch, offset) = connection.invoke_in_time(script).await?;
    Ok(Position { offset, epoch })
}

/// The part of a history to read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// The oldest publications after an offset.
    After { since: u64, limit: usize },
    /// The newest publications before an offset.
    Before { offset: u64, limit: usize },
}

/// A part of the history of a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading<'a> {
    pub(super) channel: &'a str,
    pub(super) part: Part,
    /// At most this many bytes of publications, but one in any case, and one more.
    pub(super) len_max: usize,
    pub(super) retention: Retention,
    /// Whether this node has followed the channel for a time.
    pub(super) is_followed: bool,
}

/// The result of a read.
pub(super) struct Read {
    pub(super) position: Position,
    pub(super) publications: Vec<Arc<Publication>>,
}

pub(super) async fn read(connection: &Connection, reading: Reading<'_>) -> Result<Read, EngineError> {
    let Reading { channel, part, len_max, retention, is_followed } = reading;
    let (command, after, before, limit) = match part {
        Part::After { since, limit } => ("XRANGE", since, u64::MAX, limit),
        Part::Before { offset, limit } => ("XREVRANGE", 0, offset, limit),
    };
    let mut script = READ.prepare_invoke();
    script
        .key(connection.names.key(channel, "m"))
        .key(connection.names.key(channel, "s"))
        .arg(token())
        .arg(command)
        .arg(after)
        .arg(before)
        .arg(limit)
        .arg(retention.size)
        .arg(milliseconds(retention.ttl))
        .arg(position_ttl(retention))
        .arg(if is_followed {
            position_ttl(retention).min(milliseconds(FOLLOWED_TTL))
        } else {
            milliseconds(POSITION_TTL_MIN)
        })
        .arg(len_max);
    let found: Vec<Vec<u8>> = connection.invoke(&script).await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let number = |bytes: &[u8]| -> Result<u64, EngineError> {
        text(bytes)
            .split('-')
            .next()
            .and_then(|text| text.parse().ok())
            .filter(|number| *number <= Position::OFFSET_MAX)
            .ok_or_else(|| unavailable("not an offset"))
    };
    let [epoch, top, entries @ ..] = &found[..] else {
        return Err(unavailable("an answer without a position"));
    };
    let position = Position { offset: number(top)?, epoch: text(epoch) };
    let decode = |entry: &[Vec<u8>]| {
        let publication = Publication::decode(&entry[1][..]).map_err(unavailable)?;
        Ok(Publication { offset: number(&entry[0])?, ..publication }.into())
    };
    let publications: Result<_, _> = entries.chunks_exact(2).map(decode).collect();
    Ok(Read { position, publications: publications? })
}

impl Read {
    /// The publications after `since`, even if there is a gap; all of them if the history has another epoch.
    pub(super) fn rest(self, since: &Position) -> Recovery {
        let Self { position, mut publications } = self;
        let is_other = position.epoch != since.epoch;
        publications.retain(|one| is_other || one.offset > since.offset);
        Recovery { publications, recovered: false, position }
    }

    /// The answer to a client that wants to continue from `since`. If it has not recovered, `publications` are what was read.
    pub(super) fn recovery(self, since: Option<&Position>, mode: RecoveryMode) -> Recovery {
        let Self { position, publications } = self;
        let same = since.filter(|since| since.is_in(&position.epoch) && since.offset <= position.offset);
        let missed = same.map(|since| position.offset - since.offset);
        let (publications, recovered) = match mode {
            _ if since.is_none() => (Vec::new(), false),
            _ if missed == Some(0) => (Vec::new(), true),
            RecoveryMode::Cache => {
                let has_newest = !publications.is_empty();
                (publications, has_newest)
            }
            // Offsets are consecutive.
            RecoveryMode::Stream => {
                let is_complete = missed == Some(publications.len() as u64);
                (publications, is_complete)
            }
        };
        Recovery { publications, recovered, position }
    }
}

pub(super) async fn remove(connection: &Connection, channel: &str) -> Result<(), EngineError> {
    let script = |deadline: i64| {
        let mut script = REMOVE.prepare_invoke();
        script
            .key(connection.names.key(channel, "m"))
            .key(connection.names.key(channel, "s"))
            .arg(connection.names.subject(channel))
            .arg(connection.announce_command())
            .arg(deadline);
        script
    };
    connection.invoke_in_time(script).await
}

pub(super) async fn add_presence(
    connection: &Connection,
    channel: &str,
    client: &str,
    info: &[u8],
    ttl: Duration,
) -> Result<(), EngineError> {
    let mut script = ADD_PRESENCE.prepare_invoke();
    script
        .key(connection.names.key(channel, "ph"))
        .key(connection.names.key(channel, "pz"))
        .arg(client)
        .arg(info)
        .arg(milliseconds(ttl));
    connection.invoke(&script).await
}

pub(super) async fn remove_presence(
    connection: &Connection,
    channel: &str,
    client: &str,
) -> Result<(), EngineError> {
    let mut script = REMOVE_PRESENCE.prepare_invoke();
    script.key(connection.names.key(channel, "ph")).key(connection.names.key(channel, "pz")).arg(client);
    connection.invoke(&script).await
}

/// The encoded infos of the clients of a channel; `None` if they and the names of the clients have more than `len_max` bytes.
pub(super) async fn presence(
    connection: &Connection,
    channel: &str,
    len_max: usize,
) -> Result<Option<Vec<Vec<u8>>>, EngineError> {
    let mut script = PRESENCE.prepare_invoke();
    script.key(connection.names.key(channel, "ph")).key(connection.names.key(channel, "pz")).arg(len_max);
    connection.invoke(&script).await
}
