//! HPACK: the stories decoded and encoded, and Huffman strings decoded, beside nghttp2.
//!
//! The `h2` crate keeps its HPACK to itself; it takes part in W5. ls-hpack is on no registry.

#![cfg_attr(not(rival_nghttp2), allow(unused_mut))] // Lanes are added where the rival is there.

use crate::bench::Bench;
use crate::contestant::Contestant;
use crate::exchange::Totals;
use crate::measure::{Kind, Lane, Race};
use crate::stories::{Story, stories};
use std::sync::Arc;
use wireloom_http2::field::{Field, FieldLimits, FieldList};
use wireloom_http2::hpack::{Decoder, Encoder, HuffmanPolicy, IndexPolicy};

/// Decodes and encodes the stories, a new connection each, and strings.
pub(crate) fn run(bench: &mut Bench) -> Result<(), String> {
    let stories: Arc<[Story]> = stories(bench.scale(usize::MAX, 2)).into();
    let fields = stories.iter().flatten().map(|(_, fields)| fields.len()).sum();
    let race = |title: &str, bar, lanes| Race {
        workload: "hpack",
        title: title.into(),
        bar,
        messages: fields,
        lanes,
    };

    let mut lanes = vec![Lane::new("wireloom, checked", Kind::Headline, Decoding::<Ours>::new(&stories))];
    #[cfg(rival_nghttp2)]
    {
        use nghttp2::{Checked, Unchecked};
        let name = crate::rivals::nghttp2::with_version();
        lanes.push(Lane::new(name.clone(), Kind::Rival, Decoding::<Unchecked>::new(&stories)));
        lanes.push(Lane::new(name + ", checked", Kind::Rival, Decoding::<Checked>::new(&stories)));
    }
    bench.race(race("decode the stories, a field", Some(0.62), lanes))?;

    let mut lanes = vec![Lane::new("wireloom", Kind::Headline, Encoding::<Encoder>::new(&stories))];
    #[cfg(rival_nghttp2)]
    lanes.push(Lane::new(
        crate::rivals::nghttp2::with_version(),
        Kind::Rival,
        Encoding::<crate::rivals::nghttp2::hpack::Deflater>::new(&stories),
    ));
    bench.race(race("encode the stories, a field", Some(0.7), lanes))?;

    let long = bench.scale(100, 2);
    strings(bench, &stories, "20 B", 20, 100 * long)?;
    strings(bench, &stories, "4 kB", 4_000, long)
}

/// Huffman strings and little else: literals of a name that the static table knows.
fn strings(bench: &mut Bench, stories: &[Story], size: &str, len: usize, count: usize) -> Result<(), String> {
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
    let mut lanes = vec![Lane::new("wireloom, checked", Kind::Headline, Decoding::<Ours>::new(&stories))];
    #[cfg(rival_nghttp2)]
    lanes.push(Lane::new(
        crate::rivals::nghttp2::with_version(),
        Kind::Rival,
        Decoding::<nghttp2::Unchecked>::new(&stories),
    ));
    let title = format!("decode Huffman strings of {size}, a string");
    // 1.7 times as many bytes a second.
    bench.race(Race {
        workload: "hpack",
        title,
        bar: Some(1.0 / 1.7),
        messages: text.len().div_ceil(len),
        lanes,
    })
}

/// The receiving end of one connection.
trait Decode {
    fn new() -> Self;
    /// Decodes a block and hands out its fields.
    fn decode(&mut self, block: &[u8], field: impl FnMut(&[u8], &[u8]));
}

/// The decoder and a list that is used again.
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
    fn new() -> Self;
    fn encode(&mut self, fields: &[(String, String)], out: &mut Vec<u8>);
}

impl Encode for Encoder {
    fn new() -> Self {
        Self::new()
    }

    fn encode(&mut self, fields: &[(String, String)], out: &mut Vec<u8>) {
        Self::encode(
            self,
            fields.iter().map(|(name, value)| Field::new(name.as_bytes(), value.as_bytes())),
            out,
        );
    }
}

#[cfg(rival_nghttp2)]
mod nghttp2 {
    use super::{Decode, Encode};
    use crate::rivals::nghttp2::Nv;
    use crate::rivals::nghttp2::hpack::{Deflater, Inflater};

    pub(super) struct Unchecked(Inflater);

    /// With the checks of names and values that its sessions make.
    pub(super) struct Checked(Inflater);

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
        fn new() -> Self {
            Self::new()
        }

        fn encode(&mut self, fields: &[(String, String)], out: &mut Vec<u8>) {
            let fields: Vec<Nv> =
                fields.iter().map(|(name, value)| Nv::new(name.as_bytes(), value.as_bytes())).collect();
            Self::encode(self, &fields, out);
        }
    }
}

struct Decoding<D> {
    stories: Arc<[Story]>,
    decoder: std::marker::PhantomData<D>,
}

impl<D: Decode> Decoding<D> {
    fn new(stories: &Arc<[Story]>) -> Self {
        Self { stories: Arc::clone(stories), decoder: std::marker::PhantomData }
    }
}

impl<D: Decode> Contestant for Decoding<D> {
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

struct Encoding<E> {
    stories: Arc<[Story]>,
    out: Vec<u8>,
    encoder: std::marker::PhantomData<E>,
}

impl<E: Encode> Encoding<E> {
    fn new(stories: &Arc<[Story]>) -> Self {
        Self { stories: Arc::clone(stories), out: Vec::new(), encoder: std::marker::PhantomData }
    }
}

impl<E: Encode> Contestant for Encoding<E> {
    fn pass(&mut self) {
        for story in &*self.stories {
            let mut encoder = E::new();
            for (_, fields) in story {
                self.out.clear();
                encoder.encode(fields, &mut self.out);
                std::hint::black_box(&mut self.out);
            }
        }
    }

    /// What it encodes must decode to the same fields, and be no longer than nghttp2's by more than a fiftieth.
    fn check(&mut self) -> Result<(), String> {
        let (mut ours, mut recorded) = (0, 0);
        for story in &*self.stories {
            let (mut encoder, mut decoder) = (E::new(), Ours::new());
            for (block, fields) in story {
                self.out.clear();
                encoder.encode(fields, &mut self.out);
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
