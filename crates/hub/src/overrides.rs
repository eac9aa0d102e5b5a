//! Options of a namespace that the application or a token sets for one subscription.

use serde::Deserialize;

use crate::config::ChannelOptions;
use crate::nullable::or_default;

/// The options, with the names and the form of Centrifugo. Others are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Overrides {
    presence: Option<Flag>,
    join_leave: Option<Flag>,
    force_push_join_leave: Option<Flag>,
    force_recovery: Option<Flag>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct Flag {
    #[serde(default, deserialize_with = "or_default")]
    value: bool,
}

impl Overrides {
    pub(crate) fn apply(self, options: &mut ChannelOptions) {
        for (option, flag) in [
            (&mut options.presence, self.presence),
            (&mut options.join_leave, self.join_leave),
            (&mut options.force_push_join_leave, self.force_push_join_leave),
            (&mut options.force_recovery, self.force_recovery),
        ] {
            *option = flag.map_or(*option, |flag| flag.value);
        }
    }
}
