//! The dashboard and the alert rules in `packaging`, and the book's page of metrics: each metric in them is one that `wireloom serve` prints.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::process::Server;

/// The names of metrics in a text.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("wireloom_") || word.starts_with("process_")).collect()
}

#[tokio::test]
async fn dashboard_and_alerts_use_metrics_that_exist() {
    let printed = Server::start(&[]).await.get("/metrics").await;
    let types = printed.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let mut known: BTreeSet<String> = types.map(str::to_owned).collect();
    known.extend(known.clone().iter().map(|name| format!("{name}_bucket")));
    for (file, least) in [("grafana.json", 15), ("alerts.yml", 10)] {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/").to_owned() + file;
        let text = std::fs::read_to_string(path).unwrap();
        let used = metrics(&text);
        assert!(used.len() >= least, "{file}: {used:?}");
        for name in used {
            assert!(known.contains(name), "{file}: {name} does not exist");
        }
        if file.ends_with(".json") {
            let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() >= 12));
        }
    }
}

const INTRODUCTION: &str = "\
# All metrics

What `wireloom serve` prints at `/metrics`, in its order. [Observability](guides/observability.md) says where it is served, and what to watch.

| metric | type | labels | |
|---|---|---|---|
";

/// The page of metrics: their types and explanations, and the labels of their samples.
fn reference(printed: &str) -> String {
    let (mut order, mut types, mut about) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    let mut labels: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in printed.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            order.push(name);
            about.insert(name, help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            types.insert(name, kind);
        } else if let Some((name, rest)) = line.split_once('{')
            && let Some((set, _)) = rest.split_once('}')
        {
            let names = set.split(',').filter_map(|label| label.split('=').next());
            labels.entry(name).or_default().extend(names);
        }
    }
    let mut page = INTRODUCTION.to_owned();
    for name in order {
        let labels: Vec<String> =
            labels.get(name).into_iter().flatten().map(|label| format!("`{label}`")).collect();
        let (kind, about) = (types[name], about[name]);
        writeln!(page, "| `{name}` | {kind} | {} | {about} |", labels.join(", ")).unwrap();
    }
    page
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_page_of_metrics_is_current() {
    let server = Server::start(&[]).await;
    // A response, a refused command and a connection that ends, so that their codes are among the labels.
    server.get("/healthz").await;
    let mut socket = wireloom::connect(&server.url("/connection/websocket")).await.unwrap();
    socket.send(r#"{"id":1,"connect":{}}"#).await.unwrap();
    socket.send(r#"{"id":2,"rpc":{}}"#).await.unwrap();
    socket.send("no command").await.unwrap();
    while socket.recv().await.unwrap().is_some() {}
    // The client sees the end of its connection before the server has counted it.
    let counted = async {
        loop {
            let printed = server.get("/metrics").await;
            if ["wireloom_hub_refused_total{", "wireloom_hub_ended_total{"]
                .iter()
                .all(|sample| printed.contains(sample))
            {
                break printed;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let counted = tokio::time::timeout(std::time::Duration::from_secs(60), counted).await;
    let printed = counted.expect("refusals and ends are counted");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/metrics.md");
    if std::env::var_os("WIRELOOM_RENEW_REFERENCE").is_some() {
        std::fs::write(path, reference(&printed)).unwrap();
    }
    let page = std::fs::read_to_string(path).unwrap();
    assert!(
        page == reference(&printed),
        "WIRELOOM_RENEW_REFERENCE=1 cargo test -p wireloom-cli --test shell metrics_is writes it again"
    );
    for labels in
        ["`wireloom_hub_refused_total` | counter | `code`", "`wireloom_hub_ended_total` | counter | `code`"]
    {
        assert!(page.contains(labels), "{page}");
    }
}
