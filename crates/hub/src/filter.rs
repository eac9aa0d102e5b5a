//! Filters of subscriptions: conditions on the tags of publications. The server sends only those that fit.

use std::collections::HashMap;

use crate::protocol::FilterNode;

/// The maximum number of conditions of a filter, with those that combine others, and of values to compare with.
const NODES_MAX: usize = 64;

/// The maximum length of all texts of a filter, in bytes.
const LEN_MAX: usize = 4 << 10;

/// A condition on tags.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Filter {
    /// All of them.
    And(Vec<Filter>),
    /// At least one of them.
    Or(Vec<Filter>),
    Not(Box<Filter>),
    Tag {
        key: String,
        test: Test,
    },
}

/// A condition on one tag. A tag that does not exist fits only `NotEqual`, `NotIn` and `Missing`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Test {
    Equal(String),
    NotEqual(String),
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
    StartsWith(String),
    EndsWith(String),
    Contains(String),
    Less(f64),
    LessOrEqual(f64),
    Greater(f64),
    GreaterOrEqual(f64),
}

impl Filter {
    /// `None` if the filter of a client is malformed or too large.
    pub(crate) fn new(node: &FilterNode) -> Option<Self> {
        let (mut nodes, mut len) = (NODES_MAX, LEN_MAX);
        Self::parse(node, &mut nodes, &mut len)
    }

    fn parse(node: &FilterNode, nodes_left: &mut usize, len_left: &mut usize) -> Option<Self> {
        let FilterNode { op, key, cmp, val, vals, nodes } = node;
        *nodes_left = nodes_left.checked_sub(1 + vals.len())?;
        let len = key.len() + val.len() + vals.iter().map(String::len).sum::<usize>();
        *len_left = len_left.checked_sub(len)?;
        let is_leaf = op.is_empty();
        if is_leaf != nodes.is_empty() || is_leaf == (key.is_empty() || cmp.is_empty()) {
            return None;
        }
        let number = || val.trim().parse::<f64>().ok().filter(|number| !number.is_nan());
        let test = match &**cmp {
            "" => {
                let children = nodes.iter().map(|child| Self::parse(child, nodes_left, len_left));
                let mut children = children.collect::<Option<Vec<_>>>()?;
                return match &**op {
                    "and" => Some(Self::And(children)),
                    "or" => Some(Self::Or(children)),
                    "not" if children.len() == 1 => children.pop().map(Box::new).map(Self::Not),
                    _ => None,
                };
            }
            "eq" => Test::Equal(val.clone()),
            "neq" => Test::NotEqual(val.clone()),
            "in" => Test::In(vals.clone()),
            "nin" => Test::NotIn(vals.clone()),
            "ex" => Test::Exists,
            "nex" => Test::Missing,
            "sw" => Test::StartsWith(val.clone()),
            "ew" => Test::EndsWith(val.clone()),
            "ct" => Test::Contains(val.clone()),
            "lt" => Test::Less(number()?),
            "lte" => Test::LessOrEqual(number()?),
            "gt" => Test::Greater(number()?),
            "gte" => Test::GreaterOrEqual(number()?),
            _ => return None,
        };
        Some(Self::Tag { key: key.clone(), test })
    }

    /// Whether a publication with these tags is sent.
    pub(crate) fn fits(&self, tags: &HashMap<String, String>) -> bool {
        match self {
            Self::And(all) => all.iter().all(|one| one.fits(tags)),
            Self::Or(any) => any.iter().any(|one| one.fits(tags)),
            Self::Not(other) => !other.fits(tags),
            Self::Tag { key, test } => test.fits(tags.get(key).map(String::as_str)),
        }
    }
}

impl Test {
    fn fits(&self, tag: Option<&str>) -> bool {
        let Some(tag) = tag else {
            return matches!(self, Self::NotEqual(_) | Self::NotIn(_) | Self::Missing);
        };
        // A tag that is no number fits no comparison of numbers.
        let number = || tag.trim().parse::<f64>().unwrap_or(f64::NAN);
        match self {
            Self::Equal(value) => tag == value,
            Self::NotEqual(value) => tag != value,
            Self::In(values) => values.iter().any(|value| tag == value),
            Self::NotIn(values) => values.iter().all(|value| tag != value),
            Self::Exists => true,
            Self::Missing => false,
            Self::StartsWith(value) => tag.starts_with(value),
            Self::EndsWith(value) => tag.ends_with(value),
            Self::Contains(value) => tag.contains(value),
            Self::Less(value) => number() < *value,
            Self::LessOrEqual(value) => number() <= *value,
            Self::Greater(value) => number() > *value,
            Self::GreaterOrEqual(value) => number() >= *value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(json: &str) -> Option<Filter> {
        Filter::new(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn compares_tags() {
        let tags =
            [("t", "goal"), ("n", "7.5")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        for (json, fits) in [
            (r#"{"key":"t","cmp":"eq","val":"goal"}"#, true),
            (r#"{"key":"t","cmp":"neq","val":"goal"}"#, false),
            (r#"{"key":"x","cmp":"eq"}"#, false),
            (r#"{"key":"x","cmp":"neq"}"#, true),
            (r#"{"key":"t","cmp":"in","vals":["a","goal"]}"#, true),
            (r#"{"key":"x","cmp":"in","vals":[""]}"#, false),
            (r#"{"key":"t","cmp":"nin","vals":["a","goal"]}"#, false),
            (r#"{"key":"x","cmp":"nin","vals":["a"]}"#, true),
            (r#"{"key":"t","cmp":"ex"}"#, true),
            (r#"{"key":"t","cmp":"nex"}"#, false),
            (r#"{"key":"x","cmp":"nex"}"#, true),
            (r#"{"key":"t","cmp":"sw","val":"go"}"#, true),
            (r#"{"key":"t","cmp":"ew","val":"go"}"#, false),
            (r#"{"key":"t","cmp":"ct","val":"oa"}"#, true),
            (r#"{"key":"n","cmp":"gt","val":"7"}"#, true),
            (r#"{"key":"n","cmp":"gte","val":"7.5"}"#, true),
            (r#"{"key":"n","cmp":"lt","val":"7.5"}"#, false),
            (r#"{"key":"n","cmp":"lte","val":"10"}"#, true),
            (r#"{"key":"t","cmp":"lt","val":"10"}"#, false),
            (r#"{"op":"not","nodes":[{"key":"t","cmp":"lt","val":"10"}]}"#, true),
            (r#"{"op":"and","nodes":[{"key":"t","cmp":"ex"},{"key":"x","cmp":"ex"}]}"#, false),
            (r#"{"op":"or","nodes":[{"key":"t","cmp":"ex"},{"key":"x","cmp":"ex"}]}"#, true),
        ] {
            assert_eq!(filter(json).unwrap().fits(&tags), fits, "{json}");
        }
    }

    #[test]
    fn refuses_malformed_and_large_filters() {
        for json in [
            "{}",
            r#"{"key":"a"}"#,
            r#"{"cmp":"eq"}"#,
            r#"{"key":"a","cmp":"like"}"#,
            r#"{"key":"a","cmp":"gt","val":"x"}"#,
            r#"{"key":"a","cmp":"gt","val":"NaN"}"#,
            r#"{"op":"and"}"#,
            r#"{"op":"xor","nodes":[{"key":"a","cmp":"ex"}]}"#,
            r#"{"op":"and","key":"a","cmp":"ex","nodes":[{"key":"a","cmp":"ex"}]}"#,
            r#"{"op":"not","nodes":[{"key":"a","cmp":"ex"},{"key":"a","cmp":"ex"}]}"#,
        ] {
            assert_eq!(filter(json), None, "{json}");
        }
        let leaf = FilterNode { key: "a".into(), cmp: "ex".into(), ..FilterNode::default() };
        let all = |len: usize| FilterNode {
            op: "and".into(),
            nodes: vec![leaf.clone(); len],
            ..FilterNode::default()
        };
        assert!(Filter::new(&all(NODES_MAX - 1)).is_some() && Filter::new(&all(NODES_MAX)).is_none());
        let long = |len: usize| FilterNode { key: "a".repeat(len), ..leaf.clone() };
        assert!(Filter::new(&long(LEN_MAX)).is_some() && Filter::new(&long(LEN_MAX + 1)).is_none());
    }
}
