//! Refuses settings that have no effect without others: an operator who sets one expects an effect.

use super::{
    ChannelOptions, ConfigError, EventsConfig, HubConfig, ProxyChoice, ProxyConfig, TokenConfig, shown,
};

/// A setting that has no effect without another one.
struct Need {
    setting: String,
    is_set: bool,
    needs: String,
    is_met: bool,
}

fn need(setting: impl Into<String>, is_set: bool, needs: impl Into<String>, is_met: bool) -> Need {
    Need { setting: setting.into(), is_set, needs: needs.into(), is_met }
}

/// A setting whose need is not met.
pub(crate) struct Unmet {
    /// The namespace whose option it is, empty for the default one; `None` for others, whose names begin with their section.
    pub(crate) namespace: Option<String>,
    pub(crate) setting: String,
    needs: String,
}

/// All settings whose needs are not met.
pub(crate) fn unmet(config: &HubConfig) -> impl Iterator<Item = Unmet> {
    let own = config.needs().into_iter().map(|need| (None::<String>, need));
    let of_namespaces = config.all_options().flat_map(|(name, options)| {
        options.needs(config).into_iter().map(move |need| (Some(name.to_owned()), need))
    });
    let all = own.chain(of_namespaces).filter(|(_, need)| need.is_set && !need.is_met);
    all.map(|(namespace, Need { setting, needs, .. })| Unmet { namespace, setting, needs })
}

/// An endpoint that is chosen must exist; `section` is where the one for `true` is.
fn need_of_choice(
    setting: impl Into<String>,
    choice: &ProxyChoice,
    config: &HubConfig,
    section: &str,
    own: &ProxyConfig,
) -> Need {
    match choice {
        ProxyChoice::Off => need(setting, false, "", false),
        ProxyChoice::On => need(setting, true, format!("{section}.url"), own.url.is_some()),
        ProxyChoice::Named(name) => {
            let mut names: Vec<_> = config.endpoints.keys().map(|name| format!("{name:?}")).collect();
            names.sort_unstable();
            let others =
                if names.is_empty() { "is none".into() } else { format!("are {}", names.join(", ")) };
            let needs = format!("an [[endpoint]] with the name {name:?}; there {others}");
            need(setting, true, needs, config.endpoints.contains_key(name))
        }
    }
}

/// Refuses the first setting whose need is not met.
pub(super) fn check(config: &HubConfig) -> Result<(), ConfigError> {
    let Some(Unmet { namespace, setting, needs }) = unmet(config).next() else { return Ok(()) };
    let place = namespace.map_or_else(String::new, |name| format!("namespace {}: ", shown(&name)));
    Err(ConfigError(format!("{place}{setting} needs {needs}")))
}

impl HubConfig {
    /// The settings that need others, except the options of namespaces.
    fn needs(&self) -> Vec<Need> {
        let Self { client, token, proxy, events, .. } = self;
        let personal = !client.personal_channel_namespace.is_empty();
        let mut needs = vec![need(
            "client.personal_channel_namespace",
            personal,
            "client.personal_channel",
            client.personal_channel,
        )];
        let tokens = [("token", Some(token)), ("token.subscription", token.subscription.as_deref())];
        for (section, token) in tokens.into_iter().filter_map(|(section, token)| Some((section, token?))) {
            let (refresh, url) = (format!("{section}.jwks_refresh"), format!("{section}.jwks_url"));
            let is_set = token.jwks_refresh != TokenConfig::default().jwks_refresh;
            needs.push(need(refresh, is_set, url, token.jwks_url.is_some()));
        }
        let default = EventsConfig::default();
        let batch = events.batch_max != default.batch_max;
        needs.push(need("events.batch_max", batch, "events.url", events.url.is_some()));
        let reported = events.proxy();
        for (section, endpoint, default) in [
            ("rpc", &self.rpc, ProxyConfig::default()),
            ("proxy.connect", &proxy.connect, ProxyConfig::default()),
            ("proxy.refresh", &proxy.refresh, ProxyConfig::default()),
            ("proxy.subscribe", &proxy.subscribe, ProxyConfig::default()),
            ("proxy.sub_refresh", &proxy.sub_refresh, ProxyConfig::default()),
            ("proxy.publish", &proxy.publish, ProxyConfig::default()),
            ("events", &reported, default.proxy()),
        ] {
            for (name, is_set) in [
                ("timeout", endpoint.timeout != default.timeout),
                ("headers", !endpoint.headers.is_empty()),
                ("forward_headers", !endpoint.forward_headers.is_empty()),
                ("emulated_headers", !endpoint.emulated_headers.is_empty()),
                ("include_connection_meta", endpoint.include_connection_meta),
            ] {
                let (name, url) = (format!("{section}.{name}"), format!("{section}.url"));
                needs.push(need(name, is_set, url, endpoint.url.is_some()));
            }
        }
        let choices: Vec<_> = self.all_options().map(|(_, options)| options.choices(self)).collect();
        for (at, (setting, _, section, endpoint)) in self.channel.choices(self).into_iter().enumerate() {
            let is_used = choices.iter().any(|choices| *choices[at].1 == ProxyChoice::On);
            let (url, option) = (format!("{section}.url"), format!("{setting} = true in a namespace"));
            needs.push(need(url, endpoint.url.is_some(), option, is_used));
        }
        for (name, choice) in &self.rpc_namespaces {
            needs.push(need_of_choice(format!("rpc_namespaces.{name}"), choice, self, "rpc", &self.rpc));
        }
        let of_channels = choices.iter().flatten().map(|(_, choice, ..)| *choice);
        let chosen: Vec<_> = of_channels.chain(self.rpc_namespaces.values()).collect();
        for (name, endpoint) in &self.endpoints {
            let setting = format!("endpoint.{name}");
            let is_used =
                chosen.iter().any(|choice| matches!(choice, ProxyChoice::Named(one) if one == name));
            needs.push(need(&*setting, true, "a url", endpoint.url.is_some()));
            needs.push(need(setting, true, "a namespace or rpc_namespaces that names it", is_used));
        }
        needs
    }
}

impl ChannelOptions {
    /// The endpoints of its operations: the setting, its value, and the section and the endpoint for `true`.
    fn choices<'a>(
        &'a self,
        config: &'a HubConfig,
    ) -> [(&'static str, &'a ProxyChoice, &'static str, &'a ProxyConfig); 3] {
        let proxy = &config.proxy;
        [
            ("subscribe_proxy", &self.subscribe_proxy, "proxy.subscribe", &proxy.subscribe),
            ("sub_refresh_proxy", &self.sub_refresh_proxy, "proxy.sub_refresh", &proxy.sub_refresh),
            ("publish_proxy", &self.publish_proxy, "proxy.publish", &proxy.publish),
        ]
    }

    /// The options that need others.
    fn needs(&self, config: &HubConfig) -> Vec<Need> {
        const HISTORY: &str = "a history (history_size and history_ttl)";
        let (default, has_history) = (Self::default(), self.has_history());
        let history = |name, is_set| need(name, is_set, HISTORY, has_history);
        let mut needs = vec![
            need("history_size", self.history_size > 0, "history_ttl", !self.history_ttl.is_zero()),
            need("history_ttl", !self.history_ttl.is_zero(), "history_size", self.history_size > 0),
            history("history_meta_ttl", !self.history_meta_ttl.is_zero()),
            history("force_recovery", self.force_recovery),
            history("recovery_mode", self.recovery_mode != default.recovery_mode),
            history("allowed_delta_types", !self.allowed_delta_types.is_empty()),
            history("history_access", self.history_access != default.history_access),
            need(
                "presence_access",
                self.presence_access != default.presence_access,
                "presence",
                self.presence,
            ),
            need("unsubscribe_events", self.unsubscribe_events, "events.url", config.events.url.is_some()),
        ];
        for (setting, choice, section, own) in self.choices(config) {
            needs.push(need_of_choice(setting, choice, config, section, own));
        }
        needs
    }
}
