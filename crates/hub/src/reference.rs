//! The reference of all settings, from their declarations, and settings by environment variables.

use std::fmt::Write as _;

use toml::{Table, Value};

use crate::config::{ConfigError, HubConfig};

/// The declarations, whose comments are the explanations.
const SOURCE: &str = include_str!("config.rs");

/// The sections of the file, and the structs that declare them.
const SECTIONS: [(&str, &str); 15] = [
    ("client", "ClientConfig"),
    ("transports", "TransportsConfig"),
    ("token", "TokenConfig"),
    ("token.subscription", "TokenConfig"),
    ("api", "ApiConfig"),
    ("history", "HistoryConfig"),
    ("engine", "EngineConfig"),
    ("proxy.connect", "ProxyConfig"),
    ("proxy.refresh", "ProxyConfig"),
    ("proxy.subscribe", "ProxyConfig"),
    ("proxy.sub_refresh", "ProxyConfig"),
    ("proxy.publish", "ProxyConfig"),
    ("rpc", "ProxyConfig"),
    ("events", "EventsConfig"),
    ("channel", "ChannelOptions"),
];

/// The prefix of environment variables.
const PREFIX: &str = "WIRELOOM_HUB_";

/// One setting of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting {
    /// Its section, such as `client`. The settings of `channel` are also those of each `[[namespace]]`.
    pub section: &'static str,
    /// Its name within the section.
    pub name: String,
    /// Its default in TOML; `None` if it is not set.
    pub default: Option<String>,
    /// Its effect, with the unit.
    pub about: String,
    /// Its values and what each means, if it is one of a few.
    pub values: Vec<(String, String)>,
    form: Form,
}

/// The form of a setting's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Texts: strings, durations.
    Text,
    /// Numbers, or texts such as `64K`.
    Size,
    /// `true`, `false` or a name.
    Choice,
    /// A list or a table, which only TOML can express.
    Other,
}

impl Form {
    fn of(kind: &str) -> Self {
        match kind {
            "usize" => Self::Size,
            "ProxyChoice" => Self::Choice,
            _ if kind.contains("Vec") || kind.contains("HashMap") => Self::Other,
            _ if ["String", "Duration", "PathBuf", "Access", "SlowPolicy", "RecoveryMode"]
                .iter()
                .any(|text| kind.contains(text)) =>
            {
                Self::Text
            }
            _ => Self::Other,
        }
    }

    /// Whether a value is a text, and not one of TOML's other types.
    fn is_text(self, value: &str) -> bool {
        match self {
            Self::Text => true,
            Self::Size => value.parse::<i64>().is_err(),
            Self::Choice => value.parse::<bool>().is_err(),
            Self::Other => false,
        }
    }
}

impl Setting {
    /// The environment variable that sets it, such as `WIRELOOM_HUB_CLIENT_ANONYMOUS`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}_{}", self.section.replace('.', "_"), self.name).to_ascii_uppercase()
    }
}

/// All settings, in the order of their declaration.
#[must_use]
pub fn settings() -> Vec<Setting> {
    let defaults = Table::try_from(HubConfig::default()).unwrap_or_default();
    let each = SECTIONS.iter().flat_map(|(section, declaration)| {
        let own = section.split('.').try_fold(&defaults, |table, part| table.get(part)?.as_table());
        declared(declaration).into_iter().map(move |(name, kind, about)| {
            // The keys of subscriptions have no section of their own by default.
            let default = own.and_then(|own| own.get(&name)).map(rendered);
            let values = values_of(kind.strip_prefix("Vec<").unwrap_or(&kind).trim_end_matches('>'));
            Setting { section, name, default, about, values, form: Form::of(&kind) }
        })
    });
    each.collect()
}

/// The fields of a struct: name, type and comment.
fn declared(name: &str) -> Vec<(String, String, String)> {
    let start = format!("pub struct {name} {{\n");
    let body = SOURCE.split_once(&start).map_or("", |(_, rest)| rest);
    let body = body.split_once("\n}").map_or("", |(body, _)| body);
    let (mut fields, mut about) = (Vec::new(), String::new());
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            about.push_str(if about.is_empty() { "" } else { " " });
            // The name of the section, where the source has a link.
            about.push_str(&text.replace("[`HistoryConfig`]", "`[history]`"));
        } else if let Some((name, kind)) = line.strip_prefix("pub ").and_then(|field| field.split_once(": "))
        {
            let about = std::mem::take(&mut about);
            if name != "subscription" {
                fields.push((name.to_owned(), kind.trim_end_matches(',').to_owned(), about));
            }
        }
    }
    fields
}

/// The variants of an enum, as in the file, and their comments. None for any other type.
fn values_of(name: &str) -> Vec<(String, String)> {
    let body = SOURCE.split_once(&format!("pub enum {name} {{\n")).map_or("", |(_, rest)| rest);
    let body = body.split_once("\n}").map_or("", |(body, _)| body);
    let (mut values, mut about) = (Vec::new(), Vec::new());
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            about.push(text);
        } else if let Some(variant) = line.strip_suffix(',') {
            let mut value = String::new();
            for letter in variant.chars() {
                if letter.is_ascii_uppercase() && !value.is_empty() {
                    value.push('-');
                }
                value.push(letter.to_ascii_lowercase());
            }
            values.push((value, std::mem::take(&mut about).join(" ")));
        }
    }
    values
}

/// A value in TOML.
pub(crate) fn rendered(value: &Value) -> String {
    match value {
        // TOML's basic strings have the escapes of JSON.
        Value::String(text) => serde_json::to_string(text).unwrap_or_default(),
        Value::Array(all) => format!("[{}]", all.iter().map(rendered).collect::<Vec<_>>().join(", ")),
        Value::Table(table) => {
            let each = table.iter().map(|(name, value)| {
                format!("{} = {}", serde_json::to_string(name).unwrap_or_default(), rendered(value))
            });
            let each = each.collect::<Vec<_>>().join(", ");
            if each.is_empty() { "{}".into() } else { format!("{{ {each} }}") }
        }
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(is) => is.to_string(),
        Value::Datetime(at) => format!("{at:?}"),
    }
}

/// The reference as a page of the book.
#[must_use]
pub fn reference() -> String {
    let mut page = String::from(
        "# Hub: all settings\n\n\
         The file of `wireloom serve --hub FILE`, by section, with defaults; `wireloom hub config` prints the same. Times are texts such as\n\
         `\"25s\"`, at most 100 years; sizes are bytes, or texts such as `\"64K\"`, `\"1G\"`. An environment variable replaces a setting of the file:\n\
         `WIRELOOM_HUB_`, the section and the name, as in `WIRELOOM_HUB_CLIENT_ANONYMOUS=true`. Variables that Kubernetes makes for a Service\n\
         named `wireloom-hub`, such as `WIRELOOM_HUB_SERVICE_HOST`, are ignored.\n\n\
         A `[[namespace]]` has a `name` and the settings of `[channel]`, which is the namespace of channels without a colon. An `[[endpoint]]` has a `name` and\n\
         the settings of [`[proxy.connect]`](#proxyconnect). Namespaces refer to it by its name, and so does `[rpc_namespaces]`: `billing = \"NAME\"` is for\n\
         methods that begin with `billing:`; `true` is the endpoint of `[rpc]`, and `false` is none. No environment variables set these three.\n",
    );
    let mut last = "";
    for (setting, index) in settings().iter().zip(0..) {
        if setting.section != last {
            last = setting.section;
            let again = SECTIONS.iter().find(|(_, declaration)| {
                SECTIONS.iter().any(|(section, own)| section == &last && own == declaration)
            });
            let _ = write!(page, "\n## `[{last}]`\n\n");
            if let Some((first, _)) = again.filter(|(first, _)| *first != last) {
                let _ = writeln!(page, "The settings of [`[{first}]`](#{}).", first.replace('.', ""));
                continue;
            }
            page.push_str("| setting | default | |\n|---|---|---|\n");
        } else if index > 0 && !page.ends_with("|\n") {
            continue;
        }
        let default = setting.default.as_ref().map_or_else(|| "not set".into(), |text| format!("`{text}`"));
        let about = setting.about.replace('|', "\\|");
        let _ = write!(page, "| `{}` | {default} | {about}", setting.name);
        if !setting.values.is_empty() {
            let names: Vec<_> = setting.values.iter().map(|(value, _)| format!("`{value}`")).collect();
            let _ = write!(page, " [Values](#values): {}.", names.join(", "));
        }
        page.push_str(" |\n");
    }
    page.push_str("\n## Values\n\n| settings | value | meaning |\n|---|---|---|\n");
    let mut all: Vec<(Vec<(String, String)>, String)> = Vec::new();
    for Setting { name, values, .. } in settings().into_iter().filter(|setting| !setting.values.is_empty()) {
        match all.iter_mut().find(|(known, _)| *known == values) {
            Some((_, names)) => *names += &format!(", `{name}`"),
            None => all.push((values, format!("`{name}`"))),
        }
    }
    for (values, mut names) in all {
        for (value, about) in values {
            let _ = writeln!(page, "| {} | `\"{value}\"` | {about} |", std::mem::take(&mut names));
        }
    }
    page
}

impl HubConfig {
    /// Reads the file format, and then the environment variables whose names begin with `WIRELOOM_HUB_`, which replace settings of the
    /// file. Those that Kubernetes makes for a Service named `wireloom-hub` are left out.
    ///
    /// # Errors
    /// As for [`from_toml`](Self::from_toml), and a variable names no setting.
    pub fn from_toml_and_env(
        text: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let own =
            variables.into_iter().filter(|(name, _)| name.starts_with(PREFIX) && !is_of_kubernetes(name));
        let own: Vec<_> = own.collect();
        let with_line = |error: toml::de::Error| ConfigError(error.to_string());
        // A value that is wrong in the file has a line there, whatever replaces it: a table has none.
        let config: Self = toml::from_str(text).map_err(with_line)?;
        if own.is_empty() {
            return config.check();
        }
        let mut table: Table = toml::from_str(text).map_err(with_line)?;
        let settings = settings();
        for (variable, value) in own {
            let setting = settings.iter().find(|setting| setting.variable() == variable);
            let setting = setting.ok_or_else(|| ConfigError(format!("{variable} names no setting")))?;
            let value = match setting.form.is_text(&value) {
                true => Value::String(value),
                false => parsed(&variable, &value)?,
            };
            let mut section = &mut table;
            for part in setting.section.split('.') {
                let inner = section.entry(part).or_insert_with(|| Value::Table(Table::new()));
                section = inner
                    .as_table_mut()
                    .ok_or_else(|| ConfigError(format!("{} is not a section", setting.section)))?;
            }
            section.insert(setting.name.clone(), value);
        }
        Self::from_table(table)
    }
}

/// Whether Kubernetes makes a variable of this name for a Service, as `WIRELOOM_HUB_PORT_8080_TCP` for one named `wireloom-hub`. No
/// setting has such a name.
fn is_of_kubernetes(variable: &str) -> bool {
    let is_of_port = |(_, rest): (&str, &str)| rest.starts_with(|c: char| c.is_ascii_digit());
    variable.ends_with("_SERVICE_HOST")
        || variable.ends_with("_SERVICE_PORT")
        || variable.contains("_SERVICE_PORT_")
        || variable.ends_with("_PORT")
        || variable.split_once("_PORT_").is_some_and(is_of_port)
}

/// The value of a variable that is not a text: a boolean, a number or a list in TOML.
fn parsed(variable: &str, value: &str) -> Result<Value, ConfigError> {
    let table: Result<Table, _> = toml::from_str(&format!("value = {value}"));
    table.ok().and_then(|mut table| table.remove("value")).ok_or_else(|| {
        ConfigError(format!("{variable}: {value:?} is not a value, such as true, 5 or [\"a\"]"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_an_explanation_and_a_variable_of_its_own() {
        let settings = settings();
        assert!(settings.len() > 60, "{}", settings.len());
        let mut variables = std::collections::HashSet::new();
        for setting in &settings {
            assert!(!setting.about.is_empty(), "{}.{}", setting.section, setting.name);
            let is_link = |word: &str| word.starts_with("[`") && !word.contains("](");
            assert!(!setting.about.split(' ').any(is_link), "{}", setting.about);
            assert!(variables.insert(setting.variable()), "{}", setting.variable());
            assert!(!is_of_kubernetes(&setting.variable()), "{}", setting.variable());
        }
        let default = |section: &str, name: &str| {
            let found = settings.iter().find(|setting| setting.section == section && setting.name == name);
            found.unwrap().default.clone()
        };
        assert_eq!(default("client", "ping_interval").as_deref(), Some("\"25s\""));
        assert_eq!(default("client", "anonymous").as_deref(), Some("false"));
        assert_eq!(default("channel", "subscribe").as_deref(), Some("\"token\""));
        assert_eq!(default("token", "hmac_secret"), None);
        let enums = settings.iter().filter(|setting| !setting.values.is_empty());
        let enums: Vec<_> = enums.map(|setting| (setting.name.as_str(), setting.values.len())).collect();
        let access = ["subscribe", "publish", "presence_access", "history_access"].map(|name| (name, 5));
        assert_eq!(enums[..3], [("slow", 3), ("recovery_mode", 2), ("allowed_delta_types", 1)]);
        assert_eq!(enums[3..], access);
        // Each is a value that the file may have.
        for setting in settings.iter().filter(|setting| setting.section == "channel") {
            for (value, about) in &setting.values {
                assert!(!about.is_empty(), "{value}");
                let is_list = setting.form == Form::Other;
                let value = if is_list { format!("[{value:?}]") } else { format!("{value:?}") };
                let file = format!(
                    "[channel]\npresence = true\nhistory_size = 1\nhistory_ttl = \"1s\"\n{} = {value}",
                    setting.name
                );
                HubConfig::from_toml(&file).unwrap();
            }
        }
    }

    /// Every setting of the file is declared here: one that is missing would be missing in the reference.
    #[test]
    fn the_reference_has_every_setting_of_the_default_configuration() {
        let settings = settings();
        let defaults = Table::try_from(HubConfig::default()).unwrap();
        let mut sections: Vec<(String, &Table)> = Vec::new();
        for (name, value) in &defaults {
            let table = value.as_table().unwrap();
            match table.values().all(|value| value.is_table()) && !table.is_empty() {
                true => sections.extend(
                    table.iter().map(|(inner, value)| (format!("{name}.{inner}"), value.as_table().unwrap())),
                ),
                false => sections.push((name.clone(), table)),
            }
        }
        for (section, table) in sections {
            for name in table.keys() {
                let is_listed = |one: &Setting| one.section == section && one.name == *name;
                assert!(settings.iter().any(is_listed), "{section}.{name}");
            }
        }
    }

    #[test]
    fn the_page_of_settings_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/hub-settings.md");
        if std::env::var_os("WIRELOOM_RENEW_SETTINGS").is_some() {
            std::fs::write(path, reference()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap();
        assert!(
            page == reference(),
            "WIRELOOM_RENEW_SETTINGS=1 cargo test -p wireloom-hub --lib settings writes it again"
        );
    }

    #[test]
    fn a_wrong_value_of_the_file_has_its_line_also_beside_variables() {
        let file = "[client]\nanonymous = true\nchannels_max = \"many\"\n";
        for (name, value) in
            [("PATH", "x"), ("WIRELOOM_HUB_API_KEY", "k"), ("WIRELOOM_HUB_CLIENT_CHANNELS_MAX", "5")]
        {
            let variables = [(name.to_owned(), value.to_owned())];
            let error = HubConfig::from_toml_and_env(file, variables).unwrap_err().to_string();
            assert!(error.contains("line 3") && error.contains("channels_max"), "{name}: {error}");
        }
    }

    #[test]
    fn variables_replace_settings_of_the_file() {
        let read = |variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let file = "client.anonymous = false\nclient.channels_max = 5\n[[endpoint]]\nname = \"a\"\nurl = \"http://a/\"\n\
                [rpc_namespaces]\nx = \"a\"";
            HubConfig::from_toml_and_env(file, variables)
        };
        let config = read(&[
            ("WIRELOOM_HUB_CLIENT_ANONYMOUS", "true"),
            ("WIRELOOM_HUB_CLIENT_QUEUE_LEN_MAX", "2M"),
            ("WIRELOOM_HUB_CLIENT_PING_INTERVAL", "60s"),
            ("WIRELOOM_HUB_CLIENT_CONNECTIONS_MAX", "7"),
            ("WIRELOOM_HUB_CLIENT_COMMANDS_PER_S_MAX", "8"),
            ("WIRELOOM_HUB_CLIENT_ALLOWED_ORIGINS", "[\"https://a.example\"]"),
            ("WIRELOOM_HUB_TOKEN_HMAC_SECRET", "12345"),
            ("WIRELOOM_HUB_TOKEN_SUBSCRIPTION_HMAC_SECRET", "true"),
            ("WIRELOOM_HUB_PROXY_CONNECT_URL", "http://a/"),
            ("WIRELOOM_HUB_CHANNEL_SUBSCRIBE", "anyone"),
            ("WIRELOOM_HUB_PROXY_PUBLISH_URL", "http://b/"),
            ("WIRELOOM_HUB_CHANNEL_PUBLISH_PROXY", "true"),
            ("WIRELOOM_HUB_CHANNEL_SUBSCRIBE_PROXY", "a"),
            ("WIRELOOM_HUB", "not a setting"),
            ("WIRELOOM_HUB_SERVICE_HOST", "10.0.0.1"),
            ("WIRELOOM_HUB_SERVICE_PORT", "8080"),
            ("WIRELOOM_HUB_SERVICE_PORT_HTTP", "8080"),
            ("WIRELOOM_HUB_PORT", "tcp://10.0.0.1:8080"),
            ("WIRELOOM_HUB_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
            ("WIRELOOM_HUB_PORT_8080_TCP_PROTO", "tcp"),
            ("WIRELOOM_HUB_PORT_8080_TCP_PORT", "8080"),
            ("WIRELOOM_HUB_PORT_8080_TCP_ADDR", "10.0.0.1"),
            ("WIRELOOM_HUB_ADMIN_SERVICE_HOST", "10.0.0.2"),
            ("PATH", "x"),
        ])
        .unwrap();
        assert!(config.client.anonymous);
        assert_eq!((config.client.queue_len_max, config.client.channels_max), (2 << 20, 5));
        assert_eq!(config.client.ping_interval.as_secs(), 60);
        assert_eq!((config.client.connections_max, config.client.commands_per_s_max), (7, 8));
        assert_eq!(config.client.allowed_origins, ["https://a.example"]);
        assert_eq!(config.token.hmac_secret.as_deref(), Some("12345"));
        assert_eq!(config.token.subscription.unwrap().hmac_secret.as_deref(), Some("true"));
        assert_eq!(config.proxy.connect.url.as_deref(), Some("http://a/"));
        assert_eq!(config.channel.subscribe, crate::Access::Anyone);
        assert_eq!(config.channel.publish_proxy, crate::ProxyChoice::On);
        assert_eq!(config.channel.subscribe_proxy, crate::ProxyChoice::Named("a".into()));
        for (variables, reason) in [
            ([("WIRELOOM_HUB_CLIENT_ANONYMOSU", "true")], "WIRELOOM_HUB_CLIENT_ANONYMOSU names no setting"),
            ([("WIRELOOM_HUB_SERVICE_HOSTS", "x")], "WIRELOOM_HUB_SERVICE_HOSTS names no setting"),
            ([("WIRELOOM_HUB_CLIENT_ANONYMOUS", "yes")], "\"yes\" is not a value"),
            ([("WIRELOOM_HUB_CLIENT_PING_INTERVAL", "0s")], "must not be 0"),
        ] {
            let error = read(&variables).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
