//! A Redis Cluster that loses servers: one that is silent does not hold up the others, and a replica takes over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;
use wireloom_hub::HistoryQuery;
use wireloom_hub::engine::{Engine, RedisEngine};

use crate::redis_server::Redis;
use crate::{Event, KEEP, history, missed, publication, publish, started};

/// Limit for what takes little time; the expected time is far below.
const DEADLINE: Duration = Duration::from_secs(60);

/// Longer than a command may take.
const SILENCE: Duration = Duration::from_secs(7);

const MASTERS: usize = 3;

async fn connect(nodes: &[Redis]) -> Arc<RedisEngine> {
    let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    Arc::new(RedisEngine::connect(&format!("redis+cluster://{}", hosts.join(","))).await.unwrap())
}

/// Channels of the first master, and of the others.
fn channels(node: &Redis, prefix: &str) -> (Vec<String>, Vec<String>) {
    let is_of_first = |channel: &String| {
        let answer = node.command(&format!("CLUSTER KEYSLOT wl:c:{{={channel}}}"));
        let slot: usize = answer.lines().next().unwrap().strip_prefix(':').unwrap().parse().unwrap();
        slot < 16_384 / MASTERS
    };
    (0..24).map(|number| format!("{prefix}{number}")).partition(is_of_first)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_master_does_not_hold_up_the_others() {
    let Some(cluster) = Redis::start_cluster_with(MASTERS, 0, DEADLINE) else { return };
    let (one, two) = (connect(&cluster).await, connect(&cluster).await);
    let recorder = started(&*one);
    let (silent, others) = channels(&cluster[1], "c");
    for channel in silent.iter().chain(&others) {
        publish(&*two, channel, "0").await;
    }
    cluster[0].signal("-STOP");
    let stopped_at = Instant::now();
    let mut waiting = JoinSet::new();
    for channel in &silent {
        let (engine, channel) = (one.clone(), channel.clone());
        waiting.spawn(async move { engine.subscribe(&channel).await });
    }
    let once = tokio::spawn({
        let (engine, channel) = (two.clone(), silent[0].clone());
        async move { engine.publish(&channel, publication("once"), Some(KEEP), "").await }
    });
    let served = async {
        for channel in &others {
            one.subscribe(channel).await.unwrap();
            let at = publish(&*two, channel, "1").await;
            let event = Event::Published(channel.clone(), at, "1".into());
            recorder.until(|events| events.contains(&event)).await;
        }
    };
    tokio::select! {
        biased;
        Some(ended) = waiting.join_next() => panic!("the others have waited for the silent one: {ended:?}"),
        () = served => {}
    }
    // Nor do they while its commands fail, and while the announcements of nodes, which it has passed on, are taken from another one.
    while stopped_at.elapsed() < 2 * SILENCE {
        let (engine, channel) = (two.clone(), silent[1].clone());
        let failing = async move { engine.publish(&channel, publication("1"), Some(KEEP), "k").await };
        let mut failing = std::pin::pin!(failing);
        for channel in &others {
            one.unsubscribe(channel);
            let served = async {
                one.subscribe(channel).await.unwrap();
                publish(&*two, channel, "2").await
            };
            tokio::select! {
                biased;
                failed = &mut failing => panic!("the others have waited for the silent one: {failed:?}"),
                _ = served => {}
            }
        }
        assert!(failing.await.is_err());
    }
    assert!(once.await.unwrap().is_err());
    cluster[0].signal("-CONT");
    for channel in &silent {
        let begin = Instant::now();
        while one.subscribe(channel).await.is_err() {
            assert!(begin.elapsed() < DEADLINE);
        }
        let at = publish(&*two, channel, "last").await;
        let event = Event::Published(channel.clone(), at, "last".into());
        recorder.until(|events| events.contains(&event)).await;
    }
    // An unanswered publication was stored at most once.
    let read = history(&*two, &silent[0], HistoryQuery::default()).await;
    assert!(read.iter().filter(|text| *text == "once").count() <= 1, "{read:?}");
    assert_eq!(read.last().unwrap(), "last");
}

/// Publications that the replica did not receive are lost. Clients of its channels learn that, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_of_a_cluster_takes_over() {
    let Some(mut cluster) = Redis::start_cluster_with(MASTERS, 1, Duration::from_secs(2)) else { return };
    let (one, two) = (connect(&cluster).await, connect(&cluster).await);
    let recorder = started(&*one);
    let (moved, kept) = channels(&cluster[1], "c");
    let mut positions = Vec::new();
    for channel in moved.iter().chain(&kept) {
        one.subscribe(channel).await.unwrap();
        one.recover(channel, None, wireloom_hub::RecoveryMode::Stream, KEEP, usize::MAX).await.unwrap();
        positions.push(publish(&*two, channel, "0").await);
    }
    cluster[0].kill();
    for (number, channel) in moved.iter().chain(&kept).enumerate() {
        let begin = Instant::now();
        let next = loop {
            match two.publish(channel, publication("1"), Some(KEEP), "k").await {
                Ok(position) => break position,
                Err(error) => assert!(begin.elapsed() < DEADLINE, "{channel}: {error}"),
            }
            sleep(Duration::from_millis(50)).await;
        };
        let at = &positions[number];
        let is_moved = number < moved.len();
        assert_eq!(next.epoch != at.epoch, is_moved, "{channel}");
        let expected = (!is_moved).then(|| vec!["1".to_owned()]);
        assert_eq!(missed(&*two, channel, at).await, expected, "{channel}");
        let event = if is_moved {
            Event::Lost(channel.clone())
        } else {
            Event::Published(channel.clone(), next, "1".into())
        };
        recorder.until(|events| events.contains(&event)).await;
    }
    // Announcements come from the new master, also of channels that are followed from now on.
    let (new, _) = channels(&cluster[1], "n");
    for channel in &new {
        one.subscribe(channel).await.unwrap();
    }
    for channel in moved.iter().chain(&kept).chain(&new) {
        let at = publish(&*two, channel, "2").await;
        let event = Event::Published(channel.clone(), at, "2".into());
        recorder.until(|events| events.contains(&event)).await;
    }
    let lost: Vec<_> = recorder.until(|_| true).await;
    for channel in &kept {
        assert!(!lost.contains(&Event::Lost(channel.clone())), "{channel}");
    }
    assert_eq!(two.health().failure, None);
}

/// A link to a server that loses the answer to one command, which contains a text: it closes the connection instead. Returns its port.
async fn losing_link(port: u16, text: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own_port = listener.local_addr().unwrap().port();
    let has_lost = Arc::new(AtomicBool::new(false));
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let (mut far, has_lost) =
                (TcpStream::connect(("127.0.0.1", port)).await.unwrap(), has_lost.clone());
            tokio::spawn(async move {
                let (mut question, mut answer) = (vec![0; 16 << 10], vec![0; 16 << 10]);
                let mut is_asked = false;
                loop {
                    tokio::select! {
                        Ok(len @ 1..) = near.read(&mut question) => {
                            is_asked |= question[..len].windows(text.len()).any(|part| part == text.as_bytes());
                            far.write_all(&question[..len]).await.unwrap();
                        }
                        Ok(len @ 1..) = far.read(&mut answer) => {
                            if is_asked && !has_lost.swap(true, Ordering::Relaxed) {
                                return;
                            }
                            near.write_all(&answer[..len]).await.unwrap();
                        }
                        else => return,
                    }
                }
            });
        }
    });
    own_port
}

/// The client sends a command again when it has lost a connection, which a server may have executed.
#[tokio::test(flavor = "multi_thread")]
async fn a_publication_whose_answer_is_lost_is_there_once() {
    let Some(cluster) = Redis::start_cluster(1) else { return };
    let port = losing_link(cluster[0].port, "once").await;
    assert!(cluster[0].command(&format!("CONFIG SET cluster-announce-port {port}")).contains("OK"));
    let engine = RedisEngine::connect(&format!("redis+cluster://127.0.0.1:{port}")).await.unwrap();
    let first = publish(&engine, "a", "0").await;
    let second = engine.publish("a", publication("once"), Some(KEEP), "").await;
    assert_eq!(second.map(|position| position.offset), Ok(first.offset + 1));
    assert_eq!(history(&engine, "a", HistoryQuery::default()).await, ["0", "once"]);
}
