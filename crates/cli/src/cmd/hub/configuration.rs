//! `wireloom hub token` and `config`: tokens and configurations.

use std::fmt::Display;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use wireloom_hub::{ConfigError, Hub, HubConfig, TokenClaims, convert_centrifugo, settings};

use crate::args::{ConfigCommand, Token};
use crate::exit::Exit;
use crate::terminal;

/// Reads a configuration and the environment.
pub(crate) fn read(file: &Path) -> Result<HubConfig, String> {
    let named = |error: &dyn Display| format!("{}: {error}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| named(&error))?;
    with_environment(&text).map_err(|error| named(&error))
}

/// The configuration in a text, and the environment.
pub(crate) fn with_environment(text: &str) -> Result<HubConfig, ConfigError> {
    HubConfig::from_toml_and_env(text, variables())
}

/// The environment variables whose names and values are text.
fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

pub(super) fn token(args: &Token) -> Result<String, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut claims = TokenClaims::default();
    claims.user.clone_from(&args.user);
    claims.channel.clone_from(&args.channel);
    claims.channels.clone_from(&args.subscribe);
    claims.info.clone_from(&args.info);
    claims.meta.clone_from(&args.meta);
    claims.exp = Some(now.saturating_add(args.ttl).as_secs());
    let token =
        read(&args.hub)?.sign_token(&claims).map_err(|error| format!("{}: {error}", args.hub.display()))?;
    Ok(token + "\n")
}

/// A text about configurations, and [`Exit::Broken`] for one that cannot be converted, or needs a change then.
pub(super) fn config(args: &ConfigCommand) -> Result<(String, Exit), String> {
    if let Some(file) = &args.from_centrifugo {
        let named = |error: &dyn Display| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| named(&error))?;
        let converted = match convert_centrifugo(&text) {
            Ok(converted) => converted,
            Err(error) => {
                terminal::print_error(named(&error));
                return Ok((String::new(), Exit::Broken));
            }
        };
        for path in &converted.unknown {
            terminal::print_error(format_args!("not converted: {path}"));
        }
        // The result may be incomplete, such as an endpoint that the other file names elsewhere.
        let built = HubConfig::from_toml(&converted.toml).and_then(build);
        if let Err(error) = &built {
            terminal::print_error(format_args!("the result needs a change: {error}"));
        }
        return Ok((converted.toml, if built.is_ok() { Exit::Success } else { Exit::Broken }));
    }
    match &args.file {
        Some(file) => {
            build(read(file)?).map_err(|error| format!("{}: {error}", file.display()))?;
            Ok((format!("{}: this can be used\n", file.display()), Exit::Success))
        }
        None => Ok((explained(), Exit::Success)),
    }
}

/// Checks what is read when a hub is made, such as keys.
fn build(config: HubConfig) -> Result<(), ConfigError> {
    Hub::builder().config(config).build().map(drop)
}

const ENDPOINTS: &str = "\
# Endpoints that namespaces choose by their names have the settings of this section, too:
#   [[endpoint]]
#   name = \"billing\"
#   url = \"http://127.0.0.1:3001/\"
";

const METHODS: &str = "\
# Methods may have another endpoint, by what is before their colon, such as `billing:pay`. `true` is the one of [rpc], `false` is none:
#   [rpc_namespaces]
#   billing = \"billing\"
";

const NAMESPACE: &str = "\
# The settings of channels without a colon. Those of the channels `chat:...` are in a section of their own:
#   [[namespace]]
#   name = \"chat\"
#   subscribe = \"client\"
";

/// All settings as a file: commented out, with their defaults.
fn explained() -> String {
    let mut text = String::new();
    let mut last = "";
    for setting in settings() {
        if setting.section != last {
            let gap = if last.is_empty() { "" } else { "\n" };
            last = setting.section;
            text.push_str(&format!("{gap}[{last}]\n"));
            text.push_str(match last {
                "proxy.connect" => ENDPOINTS,
                "rpc" => METHODS,
                "channel" => NAMESPACE,
                _ => "",
            });
        }
        text.push_str(&format!("# {}\n", setting.about));
        for (value, about) in &setting.values {
            text.push_str(&format!("#   {value:?}: {about}\n"));
        }
        let default = setting.default.as_deref().unwrap_or("(not set)");
        text.push_str(&format!("# {} = {default}\n", setting.name));
    }
    text
}
