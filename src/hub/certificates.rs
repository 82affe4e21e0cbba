//! The certificate authorities that servers are checked with, and what to do about a certificate that fails
//! the check.
//!
//! The variables that OpenSSL, curl and Python's clients read name them. Without one they are those of
//! Mozilla, built into the binary, and for a server that these do not know, those of the system. Nothing is
//! read before a connection needs it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{CertificateError, Error};
use ureq::tls::{Certificate, RootCerts};

use crate::sys::regular_file;

/// The variables that name a file of certificates, or a directory of such files.
const VARIABLES: [&str; 4] = ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];
/// Maximum size of a file of certificates; that of a system has half a megabyte.
const MAX_BYTES: u64 = 64 << 20;

/// The value of a variable, unless it is empty.
fn value_of(variable: &str) -> Option<OsString> {
    env::var_os(variable).filter(|value| !value.is_empty())
}

/// The variables that are set.
fn set_variables() -> Vec<&'static str> {
    VARIABLES.into_iter().filter(|variable| value_of(variable).is_some()).collect()
}

/// The authorities that variables name, all of them together; without one, those of Mozilla.
///
/// # Errors
/// If a file cannot be read or has no certificate: a sentence that names the variable.
pub(super) fn configured() -> Result<RootCerts, String> {
    let mut certificates = Vec::new();
    for variable in set_variables() {
        let value = value_of(variable).unwrap_or_default();
        // As OpenSSL, a list of directories.
        let paths: Vec<PathBuf> = match variable {
            "SSL_CERT_DIR" => env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect(),
            _ => vec![value.into()],
        };
        for path in paths {
            let unusable = |found: String| {
                let remedy = "set it to a file or a directory of certificates in PEM form";
                format!("{variable} names {}, {found}; {remedy}", path.display())
            };
            let found = read(&path).map_err(|error| unusable(format!("which cannot be read ({error})")))?;
            if found.is_empty() {
                return Err(unusable("which has no certificate in PEM form".to_owned()));
            }
            certificates.extend(found);
        }
    }
    Ok(if certificates.is_empty() { RootCerts::WebPki } else { certificates.into() })
}

/// The authorities of the system; `None` if a variable names others, or the system has none.
pub(super) fn of_system() -> Option<RootCerts> {
    if !set_variables().is_empty() {
        return None;
    }
    let found = rustls_native_certs::load_native_certs().certs;
    (!found.is_empty()).then(|| found.iter().map(certificate).collect::<Vec<_>>().into())
}

/// The certificates in a file, or in the files of a directory that can be read.
fn read(path: &Path) -> io::Result<Vec<Certificate<'static>>> {
    if !path.is_dir() {
        return of_file(path);
    }
    let mut certificates = Vec::new();
    for entry in fs::read_dir(path)? {
        certificates.extend(of_file(&entry?.path()).unwrap_or_default());
    }
    Ok(certificates)
}

/// The certificates in a file; other sections, and those that are malformed, are skipped.
fn of_file(path: &Path) -> io::Result<Vec<Certificate<'static>>> {
    let bytes = regular_file::read(path, MAX_BYTES)?;
    let found = CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok);
    Ok(found.map(|der| certificate(&der)).collect())
}

fn certificate(der: &CertificateDer) -> Certificate<'static> {
    Certificate::from_der(der).to_owned()
}

/// Whether a request failed because no known authority has signed the server's certificate.
pub(super) fn is_of_unknown_authority(error: &ureq::Error) -> bool {
    use CertificateError::{BadSignature, UnknownIssuer};
    matches!(tls_error(error), Some(Error::InvalidCertificate(UnknownIssuer | BadSignature)))
}

/// What is wrong with the certificate of a server and what to do, if a request failed because of it: the end
/// of a sentence.
pub(super) fn fault(error: &ureq::Error) -> Option<String> {
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet, NotValidYetContext,
    };
    let Error::InvalidCertificate(fault) = tls_error(error)? else { return None };
    Some(match fault {
        _ if is_of_unknown_authority(error) => match set_variables().as_slice() {
            [] => "is signed by an authority that is not trusted; set SSL_CERT_FILE to a file with the certificate of that \
                   authority in PEM form"
                .to_owned(),
            variables => format!(
                "is signed by an authority that is not in {}; add the certificate of that authority in PEM form",
                variables.join(" or ")
            ),
        },
        Expired | ExpiredContext { .. } => {
            "has expired; check the clock of this machine, or have the certificate renewed".to_owned()
        }
        NotValidYet | NotValidYetContext { .. } => {
            "is not valid yet; check the clock of this machine".to_owned()
        }
        NotValidForName | NotValidForNameContext { .. } => {
            "is for another host name; check HF_ENDPOINT, or have the name added to the certificate".to_owned()
        }
        // Of the library that rustls checks certificates with, which has no name for it here.
        fault if format!("{fault:?}").contains("CaUsedAsEndEntity") => {
            "is that of an authority itself; sign a certificate of the server's own with it, or make one without \"CA:TRUE\""
                .to_owned()
        }
        _ => "is malformed or of a kind that is not supported; have another one made".to_owned(),
    })
}

/// The error of the TLS library that a request failed with.
fn tls_error(error: &ureq::Error) -> Option<&Error> {
    match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}
