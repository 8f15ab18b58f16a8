//! Options that few tasks set, on their way to the head: an absent one is not encoded.

/// An option that a submission sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// Its name.
    pub name: &'static str,
    /// The attribute that holds it on the spans of the task.
    pub attribute: &'static str,
    /// Its value.
    pub value: i64,
}

/// Bytes that hold an option which is not known, or a value that it cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownOption;

/// `ExtraOptions`, with a field for each of these numbers. A number is not used again.
macro_rules! extra_options {
    ($(#[doc = $about:literal])+ $($number:literal => $name:ident : $type:ty, $attribute:literal;)*) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct ExtraOptions {
            $(#[doc = concat!("See [`TaskOptions::", stringify!($name), "`].")] pub $name: $type,)*
        }

        impl ExtraOptions {
            /// No option is set.
            pub const NONE: ExtraOptions = ExtraOptions { $($name: 0,)* };

            /// Takes them from the options of a task.
            pub fn of(options: &TaskOptions) -> ExtraOptions {
                ExtraOptions { $($name: options.$name,)* }
            }

            /// Returns those that are set.
            pub fn said(&self) -> impl Iterator<Item = Said> {
                let all = [$(Said { name: stringify!($name), attribute: $attribute, value: self.$name.into() },)*];
                all.into_iter().filter(|said| said.value != 0)
            }

            /// Appends those that are set: for each its number, and its value in eight bytes.
            pub fn put(&self, out: &mut Vec<u8>) {
                $(if self.$name != 0 {
                    out.push($number);
                    out.extend_from_slice(&i64::from(self.$name).to_le_bytes());
                })*
            }

            /// Reads what [`put`](Self::put) has written.
            pub fn take(bytes: &[u8]) -> Result<ExtraOptions, UnknownOption> {
                let mut options = ExtraOptions::NONE;
                let (entries, []) = bytes.as_chunks::<9>() else { return Err(UnknownOption) };
                for [number, value @ ..] in entries {
                    let value = i64::from_le_bytes(*value);
                    match number {
                        $($number if value != 0 && options.$name == 0 => {
                            options.$name = value.try_into().map_err(|_| UnknownOption)?;
                        })*
                        _ => return Err(UnknownOption),
                    }
                }
                Ok(options)
            }
        }
    };
}

pub(crate) use extra_options;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExtraOptions;

    #[test]
    fn what_is_said_survives_the_wire_and_the_rest_takes_no_byte() {
        let bytes = |options: ExtraOptions| {
            let mut out = Vec::new();
            options.put(&mut out);
            out
        };
        assert!(bytes(ExtraOptions::NONE).is_empty());
        for priority in [-100, -1, 1, 100] {
            let options = ExtraOptions { priority };
            assert_eq!(ExtraOptions::take(&bytes(options)), Ok(options));
        }
        let whole = bytes(ExtraOptions { priority: 5 });
        assert_eq!(whole, [1, 5, 0, 0, 0, 0, 0, 0, 0]);
        let unknown = [&[2], &whole[1..]].concat();
        let too_large = [1, 0, 1, 0, 0, 0, 0, 0, 0];
        for bytes in [&whole[..8], &unknown, &too_large, &[whole.clone(), whole.clone()].concat(), &[1; 1]] {
            assert_eq!(ExtraOptions::take(bytes), Err(UnknownOption), "{bytes:?}");
        }
    }
}
