//! The files of the page. They are built from `src/web/view/page` by `npm run build`, and checked in, so that nobody who builds tracer needs Node; a test
//! builds them again and compares.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// A file of the page.
pub(crate) struct File {
    pub(crate) path: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) bytes: &'static [u8],
}

/// All of them.
pub(crate) const FILES: [File; 3] = [
    File { path: "/", content_type: "text/html; charset=utf-8", bytes: include_bytes!("page/dist/index.html") },
    File {
        path: "/page.js",
        content_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("page/dist/page.js"),
    },
    File { path: "/page.css", content_type: "text/css; charset=utf-8", bytes: include_bytes!("page/dist/page.css") },
];

/// Scripts, styles and requests of this server alone, no HTML from strings, and no page of another server around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Returns the file at a path.
pub(crate) fn find(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

/// Adds the headers that every answer has.
pub(crate) fn add_headers(headers: &mut HeaderMap) {
    let fixed: [(HeaderName, &str); 6] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
