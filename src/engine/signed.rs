//! Signatures of messages of queues: who submits signs what it publishes, and nodes that trust some keys run nothing else. A broker that was broken into can
//! withhold such a task or deliver it again, and can run nothing that nobody has signed.
//!
//! | bytes | |
//! |---|---|
//! | 1 | the version, 3; a message without a signature begins with 1 or 2 |
//! | 4 and as many as they say | the public part of the key, as NATS writes it: `U…` |
//! | 64 | Ed25519, over the version, the cluster, the queue, the id in the subject and the message |
//! | the rest | the message, as it is without a signature |
//!
//! A message that is published again is signed again; Ed25519 is deterministic, so it has the same signature. A message names large values by their
//! digests, so the signature covers them too.

use std::fmt;

use nkeys::{KeyPair, KeyPairType};
use tracer_core::ClusterTaskId;
use tracer_core::codec::{Put, Take, WireError};
use tracer_ipc::protocol::EngineAccess;

use crate::access::{self, Credentials, EngineError};
use crate::message::Distrust;

/// Version of signed messages, and of what is signed.
const SIGNED: u8 = 3;
/// The most bytes of a key; those of NATS have 56.
const KEY_LIMIT: usize = 64;
/// Length of a signature in bytes.
const SIGNATURE: usize = 64;
/// Beginning of the seed in a NATS creds file.
const SEED_BEGINS: &str = "-----BEGIN USER NKEY SEED-----";

/// A place that a message is for. The same message elsewhere has another signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address<'a> {
    /// The cluster.
    pub cluster: &'a str,
    /// The queue.
    pub queue: &'a str,
    /// The task, or the first one of the bundle.
    pub id: ClusterTaskId,
}

impl Address<'_> {
    /// Returns the bytes that are signed.
    fn with(self, message: &[u8]) -> Vec<u8> {
        let mut out = b"tracer message".to_vec();
        out.put_u8(SIGNED);
        out.put_str(self.cluster);
        out.put_str(self.queue);
        out.put_u64(self.id.place.0);
        out.put_u64(self.id.task.0);
        out.put_bytes(message);
        out
    }
}

/// The key with which a node signs.
pub(crate) struct Signer {
    key: KeyPair,
    public_key: String,
}

impl Signer {
    /// Reads the key of the credentials; none if there are no credentials, or they have none.
    pub(crate) fn of(access: &EngineAccess) -> Result<Option<Signer>, EngineError> {
        let seed = match access::read(access)? {
            None => return Ok(None),
            Some(Credentials::Seed(seed)) => seed,
            Some(Credentials::File(text)) => {
                match text.split_once(SEED_BEGINS).and_then(|(_, rest)| rest.lines().nth(1)) {
                    Some(seed) => seed.trim().to_owned(),
                    None => return Ok(None),
                }
            }
        };
        let key = KeyPair::from_seed(&seed).map_err(|error| access::bad_credentials(access, &error.to_string()))?;
        Ok(Some(Signer { public_key: key.public_key(), key }))
    }

    /// Returns the public part of the key.
    pub(crate) fn public_key(&self) -> &str {
        &self.public_key
    }

    /// Returns a message with its signature.
    pub(crate) fn sign(&self, address: Address<'_>, message: &[u8]) -> Vec<u8> {
        let signature = self.key.sign(&address.with(message)).expect("a key from a seed signs");
        let mut out = vec![SIGNED];
        out.put_str(&self.public_key);
        out.put_exact(&signature);
        out.put_exact(message);
        out
    }
}

/// A message, with its signature if it has one.
struct Parts<'a> {
    signature: Option<(&'a str, &'a [u8])>,
    message: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(bytes: &'a [u8]) -> Result<Parts<'a>, WireError> {
        if bytes.first() != Some(&SIGNED) {
            return Ok(Parts { signature: None, message: bytes });
        }
        let mut take = Take::new(bytes);
        take.u8()?;
        let key = take.str()?;
        if key.len() > KEY_LIMIT || !key.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(WireError::UnknownValue("key"));
        }
        let signature = Some((key, take.exact(SIGNATURE)?));
        Ok(Parts { signature, message: take.exact(take.len())? })
    }
}

/// Reason why a message is not to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// Signature that cannot be read.
    Unread(WireError),
    /// Message that this node does not trust, with the key that it names.
    Distrusted(Distrust, String),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::Unread(error) => write!(f, "its signature cannot be read: {error}"),
            Unusable::Distrusted(Distrust::Unsigned, _) => {
                f.write_str("it is not signed, and this node runs what its trusted keys have signed, and nothing else")
            }
            Unusable::Distrusted(Distrust::OfOther, key) => {
                write!(f, "it is signed by {key}, which is none of the trusted keys of this node")
            }
            Unusable::Distrusted(Distrust::Altered, key) => {
                write!(f, "it is not what {key} has signed for this queue and this id: it was altered or moved")
            }
        }
    }
}

/// Returns the message without its signature. Where keys are trusted, only what one of them has signed for this address.
pub(crate) fn open<'a>(trusted: &[String], address: Address<'_>, bytes: &'a [u8]) -> Result<&'a [u8], Unusable> {
    let Parts { signature, message } = Parts::of(bytes).map_err(Unusable::Unread)?;
    if trusted.is_empty() {
        return Ok(message);
    }
    let distrusted = |why, key: &str| Err(Unusable::Distrusted(why, key.to_owned()));
    let Some((key, signature)) = signature else { return distrusted(Distrust::Unsigned, "") };
    if !trusted.iter().any(|trusted| trusted == key) {
        return distrusted(Distrust::OfOther, key);
    }
    let is_right = KeyPair::from_public_key(key).and_then(|key| key.verify(&address.with(message), signature));
    if is_right.is_err() {
        return distrusted(Distrust::Altered, key);
    }
    Ok(message)
}

/// Returns the message without its signature, whoever has signed it.
pub(crate) fn message_of(bytes: &[u8]) -> &[u8] {
    Parts::of(bytes).map_or(&[], |parts| parts.message)
}

/// Checks that a text is the public key of a user, and returns it.
pub fn check_key(text: &str) -> Result<String, String> {
    const EXPECTED: &str = "expected the public key of a user, which begins with `U`";
    const HINT: &str = "(hint: it stands behind `nkey:` in the server's configuration; `nsc describe user` prints that of a creds file)";
    if text.starts_with('S') {
        // It is not said again.
        return Err(format!("{EXPECTED}, found a seed, which nobody else may know\n{HINT}"));
    }
    match KeyPair::from_public_key(text) {
        Ok(key) if matches!(key.key_pair_type(), KeyPairType::User) => Ok(text.to_owned()),
        _ => Err(format!("{EXPECTED}, found `{text}`\n{HINT}")),
    }
}

/// Returns what somebody should know who starts a node that serves queues, or trusts keys.
pub fn warnings(access: &EngineAccess, serves: bool, trusted: &[String]) -> Result<Vec<String>, EngineError> {
    let mut warnings = Vec::new();
    // On loopback without credentials it is what every user of the machine expects.
    let is_open = access.credentials.is_some() || !access::is_on_loopback(&access.address);
    if serves && trusted.is_empty() && is_open {
        warnings.push(
            "whoever may publish to the queues that this node serves runs functions of its modules as you\n\
             (hint: `--trusted-key KEY` for each nkey whose tasks it is to run, and no others)"
                .into(),
        );
    }
    if !trusted.is_empty() && Signer::of(access)?.is_none() {
        warnings.push(
            "tasks that are submitted here are not signed, because there are no credentials with an nkey, and nodes with trusted keys run none of them\n\
             (hint: `--credentials FILE` names a file with the seed of an nkey, or a NATS creds file)"
                .into(),
        );
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tracer_core::PlaceId;
    use tracer_core::task::TaskId;

    use super::*;

    const ID: ClusterTaskId = ClusterTaskId { place: PlaceId(7), task: TaskId(9) };
    const HERE: Address<'_> = Address { cluster: "default", queue: "q", id: ID };

    fn signer() -> Signer {
        let key = KeyPair::new_user();
        Signer { public_key: key.public_key(), key }
    }

    #[test]
    fn what_a_trusted_key_has_signed_is_run_where_it_is_meant_to_be_and_nothing_else() {
        let (own, other) = (signer(), signer());
        let trusted = [own.public_key().to_owned()];
        let signed = own.sign(HERE, b"message");
        assert_eq!(open(&trusted, HERE, &signed), Ok(&b"message"[..]));
        assert_eq!(open(&[], HERE, &signed), Ok(&b"message"[..]), "who trusts everybody asks nobody");
        assert_eq!(open(&[], HERE, b"\x01message"), Ok(&b"\x01message"[..]));
        assert_eq!((own.sign(HERE, b"message"), message_of(&signed)), (signed.clone(), &b"message"[..]));

        let why = |address, bytes: &[u8]| match open(&trusted, address, bytes) {
            Err(Unusable::Distrusted(why, _)) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why(HERE, b"\x01message"), Distrust::Unsigned);
        assert_eq!(why(HERE, &other.sign(HERE, b"message")), Distrust::OfOther);
        let later = ClusterTaskId { task: TaskId(10), ..ID };
        let elsewhere = ClusterTaskId { place: PlaceId(8), ..ID };
        for address in [
            Address { id: later, ..HERE },
            Address { id: elsewhere, ..HERE },
            Address { queue: "r", ..HERE },
            Address { cluster: "other", ..HERE },
        ] {
            assert_eq!(why(address, &signed), Distrust::Altered, "{address:?}");
        }
        // The key of somebody who is trusted over the signature of somebody who is not.
        let forged = Signer { public_key: own.public_key().to_owned(), key: other.key };
        assert_eq!(why(HERE, &forged.sign(HERE, b"message")), Distrust::Altered);
    }

    #[test]
    fn keys_are_told_from_seeds_and_from_those_of_accounts() {
        let user = KeyPair::new_user();
        assert_eq!(check_key(&user.public_key()), Ok(user.public_key()));
        let seed = user.seed().expect("it is new");
        let refused = check_key(&seed).expect_err("it is a seed");
        assert!(!refused.contains(&seed) && refused.contains("found a seed"), "{refused}");
        for text in ["", "U", "UABC", &KeyPair::new_account().public_key()] {
            assert!(check_key(text).expect_err("it is no user's").contains("(hint: "), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn altered_bytes_are_never_run_and_never_a_panic(
            at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(),
        ) {
            let seed = "SUAPXJCVNNWXFSRFTWFYXYLHO4G2U2BETGA2ZYGYBRVWUPA2K2OKGC7UVE";
            let key = KeyPair::from_seed(seed).expect("a seed");
            let signer = Signer { public_key: key.public_key(), key };
            let trusted = [signer.public_key().to_owned()];
            let signed = signer.sign(HERE, b"message");
            let mut altered = signed.clone();
            let at = at.index(altered.len());
            altered[at] = byte;
            if altered != signed {
                prop_assert!(open(&trusted, HERE, &altered).is_err(), "byte {at} is {byte}");
            }
            prop_assert!(open(&trusted, HERE, &signed[..cut.index(signed.len())]).is_err());
            drop(open(&[], HERE, &altered));
        }
    }
}
