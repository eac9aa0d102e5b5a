//! HPACK: stories decoded and encoded, and Huffman strings decoded, beside nghttp2.
//!
//! The `h2` crate keeps its HPACK private; it takes part in W5. ls-hpack is not in a package registry.

use crate::baseline::CopyingOut;
use crate::contestant::Work;
use crate::exchange::Totals;
use crate::race::{Contestant, Race};
use crate::results::{Role, Target};
use crate::rivals::nghttp2::hpack::{Deflater, Inflater};
use crate::rivals::nghttp2::{OwnedFields, with_version};
use crate::runner::Runner;
use crate::stories::{self, Story};
use std::sync::Arc;
use wireloom_http2::field::{Field, FieldLimits, FieldList};
use wireloom_http2::hpack::{Decoder, Encoder, HuffmanPolicy, IndexPolicy};

/// Decodes and encodes field blocks, a new connection for each story, and strings.
pub(crate) fn run(runner: &mut Runner) -> Result<(), String> {
    let most = runner.scale(usize::MAX, 2);
    let made_up: Arc<[Story]> = stories::made_up(most).into();
    runner.used_data("hpack", "made-up stories: requests and responses of 24 connections from a fixed seed");
    both_ways(runner, &made_up, "")?;
    if let Some(folder) = stories::recorded_folder() {
        let recorded: Arc<[Story]> = stories::recorded(&folder, most)?.into();
        runner.used_data("hpack", "recorded stories: the folder that HPACK_STORIES names");
        both_ways(runner, &recorded, ", recorded stories")?;
    }
    let long = runner.scale(100, 2);
    strings(runner, &made_up, "20 B", 20, 100 * long)?;
    strings(runner, &made_up, "4 kB", 4_000, long)
}

fn both_ways(runner: &mut Runner, stories: &Arc<[Story]>, suffix: &str) -> Result<(), String> {
    let fields = stories.iter().flatten().map(|(_, fields)| fields.len()).sum();
    let race = |verb: &str, most, contestants| Race {
        workload: "hpack",
        title: format!("{verb}{suffix}"),
        targets: vec![Target::fastest_rival(most)],
        messages: fields,
        contestants,
    };
    let contestants = vec![
        ours::<Decoding<Ours>>(stories).with_note("checks names and values"),
        Contestant::new(with_version(), Role::Rival, Decoding::<Unchecked>::new(stories))
            .with_note("checks neither names nor values, which its sessions do later"),
        Contestant::new(with_version() + ", checked", Role::Rival, Decoding::<Checked>::new(stories))
            .with_note("with the checks that its sessions make"),
        copying_fields(stories),
    ];
    runner.race(race("decode", 0.5, contestants))?;
    let blocks = stories.iter().flatten().map(|(block, _)| [&**block]);
    let contestants = vec![
        ours::<Encoding<Encoder>>(stories),
        Contestant::new(with_version(), Role::Rival, Encoding::<Deflater>::new(stories)),
        Contestant::new("the copy of the blocks alone", Role::Baseline, CopyingOut::new(blocks)),
    ];
    runner.race(race("encode", 0.7, contestants))
}

/// Wireloom, which checks names and values while it decodes.
fn ours<W: OfStories + Work + 'static>(stories: &Arc<[Story]>) -> Contestant {
    Contestant::new("wireloom-http2, core", Role::Wireloom, W::of(stories))
}

/// The work that every decoder has to do: copies names and values.
fn copying_fields(stories: &[Story]) -> Contestant {
    let fields = stories.iter().flatten().map(|(_, fields)| fields);
    let strings =
        fields.map(|fields| fields.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]));
    let copying = CopyingOut::new(strings);
    Contestant::new("the copy of names and values alone", Role::Baseline, copying)
}

/// Work that is made from stories.
trait OfStories {
    fn of(stories: &Arc<[Story]>) -> Self;
}

/// Decodes Huffman strings and little else: literal values with a name from the static table.
fn strings(
    runner: &mut Runner,
    stories: &[Story],
    size: &str,
    len: usize,
    count: usize,
) -> Result<(), String> {
    let values = stories.iter().flatten().flat_map(|(_, fields)| fields).flat_map(|(_, value)| value.bytes());
    let letters: Vec<u8> = values.filter(u8::is_ascii_graphic).take(400_000).collect();
    let text: Vec<u8> = letters.iter().copied().cycle().take(len * count).collect();
    let mut encoder = Encoder::new();
    encoder.set_huffman_policy(HuffmanPolicy::Always);
    encoder.set_index_policy(IndexPolicy::Static);
    let path = |value: &[u8]| (":path".to_owned(), String::from_utf8_lossy(value).into_owned());
    let case = |values: &[u8]| {
        let mut block = Vec::new();
        encoder.encode(values.chunks(len).map(|value| Field::new(b":path", value)), &mut block);
        (block, values.chunks(len).map(path).collect())
    };
    // Blocks of 8 kB, so that no list is too large.
    let story: Story = text.chunks(8_000.max(len)).map(case).collect();
    let stories: Arc<[Story]> = vec![story].into();
    let contestants = vec![
        ours::<Decoding<Ours>>(&stories),
        Contestant::new(with_version(), Role::Rival, Decoding::<Unchecked>::new(&stories)),
        copying_fields(&stories),
    ];
    runner.race(Race {
        workload: "hpack",
        title: format!("decode Huffman strings of {size}"),
        // 1.7 times as many bytes a second.
        targets: vec![Target::fastest_rival(1.0 / 1.7)],
        messages: text.len().div_ceil(len),
        contestants,
    })
}

/// The receiving end of one connection.
trait Decode {
    fn new() -> Self;
    /// Decodes a block and calls `field` with each field.
    fn decode(&mut self, block: &[u8], field: impl FnMut(&[u8], &[u8]));
}

/// The decoder and a reused list.
struct Ours(Decoder, FieldList);

impl Decode for Ours {
    fn new() -> Self {
        Self(Decoder::new(4096), FieldList::new())
    }

    fn decode(&mut self, block: &[u8], mut field: impl FnMut(&[u8], &[u8])) {
        self.0.decode(block, &FieldLimits::default(), &mut self.1).expect("an honest block");
        self.1.iter().for_each(|it| field(it.name(), it.value()));
    }
}

/// The sending end of one connection.
trait Encode: Sized {
    /// The fields of a block as this encoder takes them, made before anything is timed.
    type Fields;
    fn new() -> Self;
    fn prepare(fields: &[(String, String)]) -> Self::Fields;
    fn encode(&mut self, fields: &Self::Fields, out: &mut Vec<u8>);
}

impl Encode for Encoder {
    type Fields = Vec<(String, String)>;

    fn new() -> Self {
        Self::new()
    }

    fn prepare(fields: &[(String, String)]) -> Self::Fields {
        fields.to_vec()
    }

    fn encode(&mut self, fields: &Self::Fields, out: &mut Vec<u8>) {
        let fields = fields.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes()));
        Self::encode(self, fields, out);
    }
}

/// nghttp2's decoder alone.
struct Unchecked(Inflater);

/// nghttp2's decoder with the checks of names and values that its sessions make.
struct Checked(Inflater);

impl Decode for Unchecked {
    fn new() -> Self {
        Self(Inflater::new())
    }

    fn decode(&mut self, block: &[u8], field: impl FnMut(&[u8], &[u8])) {
        self.0.decode(block, false, field);
    }
}

impl Decode for Checked {
    fn new() -> Self {
        Self(Inflater::new())
    }

    fn decode(&mut self, block: &[u8], field: impl FnMut(&[u8], &[u8])) {
        self.0.decode(block, true, field);
    }
}

impl Encode for Deflater {
    type Fields = OwnedFields;

    fn new() -> Self {
        Self::new()
    }

    fn prepare(fields: &[(String, String)]) -> Self::Fields {
        OwnedFields::new(fields)
    }

    fn encode(&mut self, fields: &Self::Fields, out: &mut Vec<u8>) {
        Self::encode(self, fields.as_slice(), out);
    }
}

struct Decoding<D> {
    stories: Arc<[Story]>,
    decoder: std::marker::PhantomData<D>,
}

impl<D: Decode> OfStories for Decoding<D> {
    fn of(stories: &Arc<[Story]>) -> Self {
        Self::new(stories)
    }
}

impl<D: Decode> Decoding<D> {
    fn new(stories: &Arc<[Story]>) -> Self {
        Self { stories: Arc::clone(stories), decoder: std::marker::PhantomData }
    }
}

impl<D: Decode> Work for Decoding<D> {
    fn pass(&mut self) {
        let mut totals = Totals::default();
        for story in &*self.stories {
            let mut decoder = D::new();
            story
                .iter()
                .for_each(|(block, _)| decoder.decode(block, |name, value| totals.field(name, value)));
        }
        std::hint::black_box(totals);
    }

    fn check(&mut self) -> Result<(), String> {
        for story in &*self.stories {
            let mut decoder = D::new();
            for (block, fields) in story {
                let mut expected = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
                let mut same = true;
                decoder.decode(block, |name, value| same &= expected.next() == Some((name, value)));
                if !same || expected.next().is_some() {
                    return Err("decodes other fields".into());
                }
            }
        }
        Ok(())
    }
}

struct Encoding<E: Encode> {
    stories: Arc<[Story]>,
    /// The fields of each block of each story.
    prepared: Vec<Vec<E::Fields>>,
    out: Vec<u8>,
}

impl<E: Encode> OfStories for Encoding<E> {
    fn of(stories: &Arc<[Story]>) -> Self {
        Self::new(stories)
    }
}

impl<E: Encode> Encoding<E> {
    fn new(stories: &Arc<[Story]>) -> Self {
        let prepare = |story: &Story| story.iter().map(|(_, fields)| E::prepare(fields)).collect();
        let prepared = stories.iter().map(prepare).collect();
        Self { stories: Arc::clone(stories), prepared, out: Vec::new() }
    }
}

impl<E: Encode> Work for Encoding<E> {
    fn pass(&mut self) {
        for story in &self.prepared {
            let mut encoder = E::new();
            for fields in story {
                self.out.clear();
                encoder.encode(fields, &mut self.out);
                std::hint::black_box(&mut self.out);
            }
        }
    }

    /// The output must decode to the same fields, and be at most 2 % longer than the recorded one.
    fn check(&mut self) -> Result<(), String> {
        let (mut ours, mut recorded) = (0, 0);
        for (story, prepared) in self.stories.iter().zip(&self.prepared) {
            let (mut encoder, mut decoder) = (E::new(), Ours::new());
            for ((block, fields), prepared) in story.iter().zip(prepared) {
                self.out.clear();
                encoder.encode(prepared, &mut self.out);
                (ours, recorded) = (ours + self.out.len(), recorded + block.len());
                let mut expected = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
                let mut same = true;
                decoder.decode(&self.out, |name, value| same &= expected.next() == Some((name, value)));
                if !same || expected.next().is_some() {
                    return Err("encodes other fields".into());
                }
            }
        }
        if ours > recorded + recorded / 50 {
            Err(format!("{ours} bytes instead of {recorded}"))
        } else {
            Ok(())
        }
    }
}
