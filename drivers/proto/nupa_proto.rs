// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Layouts shared by the NUPA fabric controller and everything that talks to it.
//!
//! Kernel modules, emulated controller, user-space provider and tools all use these definitions; each layout exists
//! once, is little-endian, has no implicit padding and asserts its size. `Documentation/controller.md` is the prose
//! of the same contract. Nothing here allocates, panics or needs `unsafe`.
//!
//! Bytes that a peer, guest or device wrote are read into these structures by copy; enumerations are integers on the
//! wire and become Rust enumerations through `TryFrom` only.

#![cfg_attr(not(MODULE), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

/// Declares a wire enumeration: a Rust enum with explicit values and a checked conversion from the integer.
macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident: $repr:ty { $($(#[$vmeta:meta])* $variant:ident = $value:expr,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $name { $($(#[$vmeta])* $variant = $value,)+ }

        impl $name {
            /// Every defined value, in the order of the specification.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The integer that stands for this value on the wire.
            #[inline]
            pub const fn to_wire(self) -> $repr {
                self as $repr
            }
        }

        impl TryFrom<$repr> for $name {
            type Error = crate::ident::UnknownValue;

            #[inline]
            fn try_from(value: $repr) -> Result<Self, Self::Error> {
                match value {
                    $(v if v == $value => Ok(Self::$variant),)+
                    other => Err(crate::ident::UnknownValue(u32::from(other))),
                }
            }
        }
    };
}

/// Asserts at compile time that a layout has the size that the specification gives it.
macro_rules! assert_size {
    ($name:ty, $size:expr) => {
        const _: () = assert!(core::mem::size_of::<$name>() == $size);
    };
}

/// Version of the source that modules, provider and tools are built from.
pub const VERSION: &str = "0.1.0";

pub mod admin;
pub mod cqe;
pub mod doorbell;
pub mod eqe;
pub mod frame;
pub mod ident;
pub mod netlink;
pub mod pool;
pub mod process_ring;
pub mod regs;
pub mod status;
pub mod uabi;
pub mod wqe;

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_is_that_of_the_package_and_of_the_provider() {
        assert_eq!(super::VERSION, env!("CARGO_PKG_VERSION"));
        assert_eq!(
            super::uabi::ProviderInfo::THIS.version(),
            Some(super::VERSION)
        );
    }
}
