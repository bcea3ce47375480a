//! The `api!` macro: turns one API's table into structs with their encoders and decoders.
//!
//! ```text
//! api! {
//!     Fetch = 1, versions 4..=17, flexible 12.., FetchRequest => FetchResponse;
//!
//!     /// What the struct is.
//!     pub struct FetchRequest {
//!         /// What the field is.
//!         replica_id: i32 [..=14] = -1,
//!     //  name        type versions  Kafka's default, where it is not the type's own
//!         cluster_id: Option<ByteString> [12..] nullable tag(0) ignorable = None,
//!     //                                 │        │      └ dropped in versions without the field; else an error
//!     //                                 │        └ in flexible versions a tagged field, written when not the default
//!     //                                 └ may be null: in all its versions, or `nullable(10..)`
//!     }
//! }
//! ```
//!
//! The words are those of Kafka's message JSON: `versions`, `nullableVersions`, `tag`, `ignorable`, `default`.
//! Versions below a message's own minimum are left open (`[..=14]`, `[..]`).

/// Whether a flag is among a field's flags.
macro_rules! has_ignorable {
    () => { false };
    (ignorable $($rest:tt)*) => { true };
    ($skip:tt $($rest:tt)*) => { has_ignorable!($($rest)*) };
}

/// A field's tag, if it is a tagged field.
macro_rules! tag_of {
    () => { None };
    (tag($tag:literal) $($rest:tt)*) => { Some($tag) };
    ($skip:tt $($rest:tt)*) => { tag_of!($($rest)*) };
}

/// Whether a field may be null in a version.
macro_rules! nullable_in {
    ($version:ident;) => { false };
    ($version:ident; nullable($($range:tt)+) $($rest:tt)*) => { versions_contain!($version; $($range)+) };
    ($version:ident; nullable $($rest:tt)*) => { true };
    ($version:ident; $skip:tt $($rest:tt)*) => { nullable_in!($version; $($rest)*) };
}

/// Whether a range of versions, written as Rust's, contains a version.
macro_rules! versions_contain {
    ($version:ident; $($range:tt)+) => { std::ops::RangeBounds::<i16>::contains(&($($range)+), &$version) };
}

/// A field's default: the one of the table, or of its type.
macro_rules! default_of {
    ($ty:ty) => {
        <$ty as $crate::messages::wire::Wire>::empty()
    };
    ($ty:ty, $default:expr) => {
        $default
    };
}

/// Notes the error codes of one field: the field named so is one.
macro_rules! note_errors {
    (error_code, $field:expr, $note:ident) => {
        $note($field)
    };
    ($name:ident, $field:expr, $note:ident) => {
        Wire::note_errors(&$field, $note)
    };
}

macro_rules! api {
    (
        $api:ident = $key:literal, versions $min:literal..=$max:literal, flexible $flexible:literal..,
        $request:ident => $response:ident;

        $(
            $(#[$doc:meta])*
            pub struct $name:ident {
                $(
                    $(#[$field_doc:meta])*
                    $field:ident: $type:ty [$($versions:tt)+]
                        $($flag:ident $(($($argument:tt)*))?)* $(= $default:expr)?,
                )*
            }
        )+
    ) => {
        /// Lowest version both messages are known in.
        pub const MIN_VERSION: i16 = $min;
        /// Highest version both messages are known in.
        pub const MAX_VERSION: i16 = $max;
        /// First version with compact lengths and tagged fields.
        pub const FIRST_FLEXIBLE_VERSION: i16 = $flexible;

        impl_message!($request, $key, $min, $max, $flexible);
        impl_message!($response, $key, $min, $max, $flexible);

        impl $crate::messages::Request for $request {
            type Response = $response;
        }

        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq)]
            pub struct $name {
                $(
                    $(#[$field_doc])*
                    pub $field: $type,
                )*
            }

            impl Default for $name {
                fn default() -> Self {
                    Self { $($field: default_of!($type $(, $default)?)),* }
                }
            }

            impl Wire for $name {
                fn empty() -> Self {
                    Self::default()
                }

                fn min_len(form: Form) -> usize {
                    let version = form.version;
                    let mut length = usize::from(form.flexible);
                    $({
                        const TAG: Option<u32> = tag_of!($($flag $(($($argument)*))?)*);
                        if TAG.is_none() && versions_contain!(version; $($versions)+) {
                            length += <$type as Wire>::min_len(form);
                        }
                    })*
                    length.max(1)
                }

                fn write(&self, out: &mut BytesMut, form: Form) -> Result<(), EncodeError> {
                    let version = form.version;
                    let mut tagged = TaggedFields::default();
                    $({
                        const TAG: Option<u32> = tag_of!($($flag $(($($argument)*))?)*);
                        let present = versions_contain!(version; $($versions)+);
                        let form = form.nullable(
                            nullable_in!(version; $($flag $(($($argument)*))?)*)
                        );
                        let is_default = || self.$field == default_of!($type $(, $default)?);
                        match TAG {
                            None if present => self.$field.write(out, form),
                            Some(tag) if present && form.flexible => {
                                if is_default() { Ok(()) } else { tagged.put(tag, &self.$field, form) }
                            }
                            _ if has_ignorable!($($flag $(($($argument)*))?)*) || is_default() => Ok(()),
                            _ => Err(EncodeFault::FieldNotInVersion { version }.into()),
                        }
                        .map_err(|error: EncodeError| error.at(stringify!($name), stringify!($field)))?;
                    })*
                    if form.flexible {
                        tagged.write_to(out);
                    }
                    Ok(())
                }

                fn read(buf: &mut Bytes, form: Form) -> Result<Self, DecodeError> {
                    let version = form.version;
                    let mut this = Self::default();
                    $({
                        const TAG: Option<u32> = tag_of!($($flag $(($($argument)*))?)*);
                        if TAG.is_none() && versions_contain!(version; $($versions)+) {
                            let form = form.nullable(
                                nullable_in!(version; $($flag $(($($argument)*))?)*)
                            );
                            this.$field = Wire::read(buf, form)
                                .map_err(|error| error.at(stringify!($name), stringify!($field)))?;
                        }
                    })*
                    if form.flexible {
                        read_tagged_fields(buf, |tag, value| {
                            $({
                                const TAG: Option<u32> = tag_of!($($flag $(($($argument)*))?)*);
                                if TAG == Some(tag) && versions_contain!(version; $($versions)+) {
                                    let form = form.nullable(
                                        nullable_in!(version; $($flag $(($($argument)*))?)*)
                                    );
                                    this.$field = read_whole(value, form).map_err(|error| {
                                        error.at(stringify!($name), stringify!($field))
                                    })?;
                                }
                            })*
                            Ok(())
                        })
                        .map_err(|error| error.at(stringify!($name), ""))?;
                    }
                    Ok(this)
                }

                fn note_errors(&self, note: &mut dyn FnMut(i16)) {
                    $(note_errors!($field, self.$field, note);)*
                }
            }

            #[cfg(test)]
            impl $crate::messages::sample::Sample for $name {
                fn sample(sampler: &mut $crate::messages::sample::Sampler, form: Form) -> Self {
                    let version = form.version;
                    let mut this = Self::default();
                    $(
                        if versions_contain!(version; $($versions)+) {
                            let form = form.nullable(
                                nullable_in!(version; $($flag $(($($argument)*))?)*)
                            );
                            this.$field = sampler.field(form, &this.$field);
                        }
                    )*
                    this
                }
            }
        )+
    };
}

/// The public face of a struct that is a whole request or response.
macro_rules! impl_message {
    ($name:ident, $key:literal, $min:literal, $max:literal, $flexible:literal) => {
        impl $crate::messages::Message for $name {
            const API_KEY: i16 = $key;
            const NAME: &'static str = stringify!($name);
            const MIN_VERSION: i16 = $min;
            const MAX_VERSION: i16 = $max;
            const FIRST_FLEXIBLE_VERSION: i16 = $flexible;

            fn encode(&self, out: &mut BytesMut, version: i16) -> Result<(), EncodeError> {
                if !($min..=$max).contains(&version) {
                    let fault = EncodeFault::UnsupportedVersion {
                        version,
                        min: $min,
                        max: $max,
                    };
                    return Err(EncodeError::from(fault).at(stringify!($name), ""));
                }
                Wire::write(self, out, Form::of_version(version, version >= $flexible))
            }

            fn decode(buf: &mut Bytes, version: i16) -> Result<Self, DecodeError> {
                if !($min..=$max).contains(&version) {
                    let fault = DecodeFault::UnsupportedVersion {
                        version,
                        min: $min,
                        max: $max,
                    };
                    return Err(DecodeError::from(fault).at(stringify!($name), ""));
                }
                Wire::read(buf, Form::of_version(version, version >= $flexible))
            }

            fn error_codes(&self, note: &mut dyn FnMut(i16)) {
                Wire::note_errors(self, note);
            }
        }
    };
}
