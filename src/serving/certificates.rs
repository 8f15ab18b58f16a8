//! Certificates with their keys, as a service file names them: read from files in PEM, checked against each other, and chosen by the name that a
//! client asks for (SNI, RFC 6066, section 3).

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls;
use tracer_core::clock::parse_rfc3339;
use tracer_core::hosts::{HostPattern, Hosts};
use tracer_ipc::serving::Tls;

use self::rustls::crypto::{CryptoProvider, ring};
use self::rustls::pki_types::pem::{self, PemObject};
use self::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use self::rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use self::rustls::sign::CertifiedKey;
use self::rustls::{Error, InconsistentKeys};

/// Longest file that is read: a chain has a few kilobytes.
const FILE_BYTES: u64 = 1 << 20;

/// File of a pair that something is wrong with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairFile {
    /// The certificate with its chain.
    Certificate,
    /// Its key.
    Key,
}

impl PairFile {
    /// Returns the key of the service file that names it.
    pub fn key(self) -> &'static str {
        match self {
            PairFile::Certificate => "certificate",
            PairFile::Key => "key",
        }
    }
}

/// Mistake in a certificate or its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairError {
    /// The file.
    pub file: PairFile,
    /// Place of the pair in the service file: none for that of `[http.tls]`, else the index of its `[[http.tls.names]]`.
    pub name: Option<usize>,
    /// Expectation and finding, with the file's path.
    pub reason: String,
}

impl fmt::Display for PairError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// A certificate with its key, and until when it is valid.
#[derive(Debug)]
pub struct Pair {
    certified: Arc<CertifiedKey>,
    /// Path of the certificate, for people.
    pub path: String,
    /// Times from which and until which it is valid, in nanoseconds since the Unix epoch.
    pub validity: (u64, u64),
    /// Hosts that it is chosen for and not valid for.
    pub foreign_hosts: Vec<String>,
}

/// Returns the cryptography that handshakes use: that of `ring`, which needs nothing to be built but a C compiler.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl Pair {
    /// Reads a certificate and its key.
    fn read(certificate: &Path, key: &Path, provider: &CryptoProvider) -> Result<Pair, (PairFile, String)> {
        let of_certificate = |reason: String| (PairFile::Certificate, reason);
        let of_key = |reason: String| (PairFile::Key, reason);
        let text = read(certificate).map_err(of_certificate)?;
        let path = certificate.display().to_string();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
            .collect::<Result<_, _>>()
            .map_err(|error| of_certificate(format!("expected certificates in PEM, found in `{path}`: {error}")))?;
        let Some(own) = chain.first() else {
            let reason = format!(
                "expected certificates in PEM, found none in `{path}`\n(hint: the server's own comes first, then those that have signed it)"
            );
            return Err(of_certificate(reason));
        };
        let validity = validity(own).filter(|_| ParsedCertificate::try_from(own).is_ok()).ok_or_else(|| {
            of_certificate(format!("expected a certificate of X.509 version 3, found another thing in `{path}`"))
        })?;
        let text = read(key).map_err(of_key)?;
        let key_path = key.display();
        let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
            pem::Error::NoItemsFound => of_key(format!(
                "expected a private key in PEM without a pass phrase, found none in `{key_path}`\n\
                 (hint: `openssl pkey -in KEY -out PLAIN` takes the pass phrase off one that has it)"
            )),
            error => of_key(format!("expected a private key in PEM, found in `{key_path}`: {error}")),
        })?;
        let certified = CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => of_key(format!(
                "expected the key of the certificate `{path}`, found another one's in `{key_path}`\n\
                 (hint: `openssl pkey -in KEY -pubout` and `openssl x509 -in CERTIFICATE -noout -pubkey` print the same for a pair)"
            )),
            error => of_key(format!("expected a key of RSA, ECDSA (P-256, P-384) or Ed25519, found in `{key_path}`: {error}")),
        })?;
        Ok(Pair { certified: Arc::new(certified), path, validity, foreign_hosts: Vec::new() })
    }

    /// Notes which of the hosts that it is chosen for it is not valid for.
    fn choose_for(&mut self, hosts: &[HostPattern]) {
        let parsed = self.certified.end_entity_cert().ok().and_then(|own| ParsedCertificate::try_from(own).ok());
        let is_valid_for = |host: &HostPattern| {
            // Any name will do in the place of `*`.
            let name =
                host.as_str().strip_prefix("*.").map_or(host.as_str().to_owned(), |rest| format!("any-name.{rest}"));
            let name = ServerName::try_from(name).ok();
            name.zip(parsed.as_ref())
                .is_some_and(|(name, parsed)| rustls::client::verify_server_name(parsed, &name).is_ok())
        };
        self.foreign_hosts = hosts.iter().filter(|host| !is_valid_for(host)).map(ToString::to_string).collect();
    }

    /// Returns what people should know about the names that it is chosen for.
    pub fn warnings(&self) -> Vec<String> {
        let foreign = self.foreign_hosts.iter();
        foreign
            .map(|host| {
                format!("the certificate `{}` is chosen for `{host}`, and is not valid for that host", self.path)
            })
            .collect()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let length = std::fs::metadata(path).map_err(|error| format!("expected a file, found `{shown}`: {error}"))?.len();
    if length > FILE_BYTES {
        return Err(format!("expected a file of {FILE_BYTES} bytes at most, found {length} in `{shown}`"));
    }
    std::fs::read(path).map_err(|error| format!("`{shown}` cannot be read: {error}"))
}

/// All certificates of a service.
#[derive(Debug)]
pub struct Certificates {
    /// The certificate for every name that no other is for, then those of names in the order of the service file.
    pub pairs: Vec<Pair>,
    by_name: Hosts<usize>,
}

impl Certificates {
    /// Reads and checks all certificates that a service names.
    ///
    /// # Errors
    ///
    /// The first mistake.
    pub fn read(tls: &Tls) -> Result<Certificates, PairError> {
        let provider = provider();
        let at = |name: Option<usize>| move |(file, reason)| PairError { file, name, reason };
        let mut pairs = vec![Pair::read(&tls.certificate, &tls.key, &provider).map_err(at(None))?];
        let mut by_name = Hosts::default();
        for (index, name) in tls.names.iter().enumerate() {
            let mut pair = Pair::read(&name.certificate, &name.key, &provider).map_err(at(Some(index)))?;
            // What a service file says of hosts was checked with it.
            let hosts: Vec<HostPattern> = name.hosts.iter().filter_map(|host| host.parse().ok()).collect();
            pair.choose_for(&hosts);
            for host in &hosts {
                by_name.insert(host, pairs.len());
            }
            pairs.push(pair);
        }
        Ok(Certificates { pairs, by_name })
    }

    /// Returns the one for a client that asks for this name, if it asks for any.
    fn choose(&self, name: Option<&str>) -> &Pair {
        let index = name.and_then(|name| self.by_name.find(name)).copied().unwrap_or_default();
        &self.pairs[index]
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.choose(hello.server_name()).certified))
    }
}

/// Reads the validity of a certificate in DER (RFC 5280, section 4.1): from when and until when, in nanoseconds since the Unix epoch. None for what
/// is no certificate.
fn validity(certificate: &[u8]) -> Option<(u64, u64)> {
    const SEQUENCE: u8 = 0x30;
    const INTEGER: u8 = 0x02;
    const VERSION: u8 = 0xa0;
    let mut outer = Der(certificate);
    let mut certificate = Der(outer.take(SEQUENCE)?);
    let mut signed = Der(certificate.take(SEQUENCE)?);
    if signed.0.first() == Some(&VERSION) {
        signed.take(VERSION)?;
    }
    signed.take(INTEGER)?;
    signed.take(SEQUENCE)?;
    signed.take(SEQUENCE)?;
    let mut validity = Der(signed.take(SEQUENCE)?);
    let (from, until) = (validity.time()?, validity.time()?);
    // What lies before 1970 is valid from the beginning of time on, what lies beyond its end for ever.
    let nanos = |(year, text): (u32, String), unless| {
        parse_rfc3339(&text).or((!(1970..2554).contains(&year)).then_some(unless))
    };
    Some((nanos(from, 0)?, nanos(until, u64::MAX)?))
}

/// Values in DER that follow each other.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Takes the contents of the next value, which has this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, rest) = self.0.split_first()?;
        let (first, mut rest) = rest.split_first()?;
        let mut length = usize::from(*first);
        if length >= 0x80 {
            let (digits, after) = rest.split_at_checked(length & 0x7f)?;
            length =
                digits.iter().try_fold(0_usize, |sum, digit| sum.checked_mul(256)?.checked_add(usize::from(*digit)))?;
            rest = after;
        }
        let (contents, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        (*found == tag).then_some(contents)
    }

    /// Takes a time: its year, and all of it as RFC 3339 writes it.
    fn time(&mut self) -> Option<(u32, String)> {
        const UTC_TIME: u8 = 0x17;
        const GENERALIZED_TIME: u8 = 0x18;
        let tag = *self.0.first()?;
        let digits = std::str::from_utf8(self.take(tag)?).ok()?.strip_suffix('Z')?;
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let (year, rest) = match tag {
            UTC_TIME => digits.split_at_checked(2)?,
            GENERALIZED_TIME => digits.split_at_checked(4)?,
            _ => return None,
        };
        let year = match (tag, year.parse::<u32>().ok()?) {
            (UTC_TIME, year) if year < 50 => 2000 + year,
            (UTC_TIME, year) => 1900 + year,
            (_, year) => year,
        };
        if rest.len() != 10 {
            return None;
        }
        let part = |number: usize| &rest[2 * number..2 * number + 2];
        Some((year, format!("{year:04}-{}-{}T{}:{}:{}Z", part(0), part(1), part(2), part(3), part(4))))
    }
}

#[cfg(test)]
mod tests {
    use tracer_core::clock::utc;

    use super::*;

    fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
        let mut value = vec![tag];
        match contents.len() {
            length @ 0..0x80 => value.push(length as u8),
            length => value.extend([0x82, (length >> 8) as u8, length as u8]),
        }
        value.extend(contents);
        value
    }

    /// Makes the beginning of a certificate as far as it is read.
    fn certificate(has_version: bool, times: [(u8, &str); 2]) -> Vec<u8> {
        let times: Vec<u8> = times.iter().flat_map(|(tag, text)| der(*tag, text.as_bytes())).collect();
        let version = if has_version { der(0xa0, &der(2, &[2])) } else { Vec::new() };
        let parts = [
            version,
            der(2, &[1; 20]),
            der(0x30, b"algorithm"),
            der(0x30, &[7; 300]),
            der(0x30, &times),
            der(0x30, b"subject"),
        ];
        der(0x30, &der(0x30, &parts.concat()))
    }

    #[test]
    fn the_validity_of_a_certificate_is_read() {
        let of = |from, until| validity(&certificate(true, [from, until]));
        let (from, until) = of((0x17, "260102030405Z"), (0x17, "491231235959Z")).unwrap();
        assert_eq!(
            (utc(from).to_string(), utc(until).to_string()),
            ("2026-01-02T03:04:05.000Z".into(), "2049-12-31T23:59:59.000Z".into())
        );
        let (from, until) = of((0x17, "500101000000Z"), (0x18, "20500101000000Z")).unwrap();
        assert_eq!((from, utc(until).to_string()), (0, "2050-01-01T00:00:00.000Z".into()));
        assert_eq!(of((0x17, "260102030405Z"), (0x18, "99991231235959Z")).unwrap().1, u64::MAX);
        assert!(validity(&certificate(false, [(0x17, "260102030405Z"), (0x17, "270102030405Z")])).is_some());
        for bad in ["260102030405", "2601020304Z", "26010203040xZ", "261302030405Z", ""] {
            assert_eq!(of((0x17, bad), (0x17, "270102030405Z")), None, "{bad}");
        }
    }

    #[test]
    fn what_is_no_certificate_is_refused_wherever_it_is_cut_off() {
        let whole = certificate(true, [(0x17, "260102030405Z"), (0x17, "270102030405Z")]);
        assert!(validity(&whole).is_some());
        for end in 0..whole.len() {
            assert_eq!(validity(&whole[..end]), None, "{end} bytes");
        }
        assert_eq!(validity(&[0x30, 0xff]), None);
        assert_eq!(validity(&[0x30, 0x89, 255, 255, 255, 255, 255, 255, 255, 255, 255]), None);
    }
}
