//! The dashboard and the alert rules in `packaging`: each metric in them is one that `wireloom serve` prints.

use std::collections::BTreeSet;

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
