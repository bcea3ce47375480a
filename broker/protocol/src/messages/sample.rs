//! Test values for every message: the tables generate [`Sample`], the comparison draws from it.

use bytes::Bytes;
use bytestring::ByteString;
use uuid::Uuid;

use super::{
    Payload,
    wire::{Form, Wire},
};

/// What kind of values to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Every field at its default.
    Default,
    /// Every nullable field null, arrays of one element.
    Null,
    /// Every string and array empty.
    Empty,
    /// Nothing at its default, arrays of three elements.
    Filled,
    /// Each field one of the above.
    Mixed,
}

/// A source of values: a seeded generator, the same everywhere.
#[derive(Debug)]
pub(crate) struct Sampler {
    shape: Shape,
    state: u64,
}

impl Sampler {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        Self {
            shape,
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn shape(&mut self) -> Shape {
        if self.shape != Shape::Mixed {
            return self.shape;
        }
        [Shape::Null, Shape::Empty, Shape::Filled, Shape::Default][(self.next() >> 60) as usize % 4]
    }

    /// Draws a field; `default` is its default.
    pub(crate) fn field<T: Sample + Wire + Clone + PartialEq>(
        &mut self,
        form: Form,
        default: &T,
    ) -> T {
        if self.shape() == Shape::Default {
            return default.clone();
        }
        let mut value = T::sample(self, form);
        for _ in 0..8 {
            if self.shape != Shape::Filled || value != *default {
                break;
            }
            value = T::sample(self, form);
        }
        value
    }

    fn count(&mut self) -> usize {
        match self.shape() {
            Shape::Empty => 0,
            Shape::Null => 1,
            Shape::Filled | Shape::Default | Shape::Mixed => 3,
        }
    }

    fn length(&mut self) -> usize {
        if self.shape() == Shape::Empty {
            return 0;
        }
        // Now and then a length whose compact form takes two bytes.
        [1, 7, 20, 126, 127, 128, 300][(self.next() >> 33) as usize % 7]
    }
}

/// A type with test values.
pub(crate) trait Sample: Sized {
    fn sample(sampler: &mut Sampler, form: Form) -> Self;
}

macro_rules! integers {
    ($($ty:ty)+) => {$(
        impl Sample for $ty {
            #[expect(clippy::allow_attributes, reason = "lints differ by type")]
            #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "any bits do")]
            fn sample(sampler: &mut Sampler, _: Form) -> Self {
                (sampler.next() >> 7) as $ty
            }
        }
    )+};
}

integers! { i8 i16 i32 i64 u16 }

impl Sample for f64 {
    fn sample(sampler: &mut Sampler, _: Form) -> Self {
        Self::from(i32::sample(sampler, Form::of_version(0, false))) / 8.0
    }
}

impl Sample for bool {
    fn sample(sampler: &mut Sampler, _: Form) -> Self {
        sampler.next() >> 63 == 1
    }
}

impl Sample for Uuid {
    fn sample(sampler: &mut Sampler, _: Form) -> Self {
        Self::from_u64_pair(sampler.next(), sampler.next())
    }
}

impl Sample for ByteString {
    fn sample(sampler: &mut Sampler, _: Form) -> Self {
        let length = sampler.length();
        let letters = ['a', 'Z', '0', '_', '.', '-', 'ü', '日'];
        (0..length)
            .map(|_| letters[(sampler.next() >> 61) as usize])
            .collect::<String>()
            .into()
    }
}

impl Sample for Bytes {
    fn sample(sampler: &mut Sampler, _: Form) -> Self {
        let length = sampler.length();
        (0..length).map(|_| (sampler.next() >> 56) as u8).collect()
    }
}

impl Sample for Payload {
    fn sample(sampler: &mut Sampler, form: Form) -> Self {
        Self::Bytes(Bytes::sample(sampler, form))
    }
}

impl<T: Sample> Sample for Vec<T> {
    fn sample(sampler: &mut Sampler, form: Form) -> Self {
        let count = sampler.count();
        (0..count)
            .map(|_| T::sample(sampler, form.nullable(false)))
            .collect()
    }
}

impl<T: Sample> Sample for Box<T> {
    fn sample(sampler: &mut Sampler, form: Form) -> Self {
        Self::new(T::sample(sampler, form.nullable(false)))
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(sampler: &mut Sampler, form: Form) -> Self {
        if form.nullable && sampler.shape() == Shape::Null {
            return None;
        }
        Some(T::sample(sampler, form))
    }
}
