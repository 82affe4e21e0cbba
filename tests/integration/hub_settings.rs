//! What the environment says about the hub: the variables of Hugging Face, proxies and certificates; and
//! which model a name means.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::hub::{COMMIT, MODEL, TEXT, User, WEIGHTS, assert_vector, hub, hub_with, output, tree};
use crate::support::server::{Hub, encrypted};
use crate::support::{assert_fails, fixture, stderr, stdout};
use serde_json::Value;

/// Runs `sconce download` with these variables.
fn download(user: &User, variables: &[(&str, &str)]) -> Output {
    output(user.sconce(&["download", MODEL]).envs(variables.iter().copied()))
}

#[track_caller]
fn assert_downloaded(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
}

/// A hub whose files are all its own, without a storage server for large ones.
fn hub_of_small_files() -> Hub {
    hub_with(|site| {
        site.files.remove(WEIGHTS);
        let weights = fs::read(fixture("pytorch").join("bert-tiny.bin")).expect("a fixture");
        site.files.insert("pytorch_model.bin".into(), weights);
    })
}

/// The variables that `huggingface_hub` 2.4 expands with `os.path.expanduser` and `os.path.expandvars`, in
/// its order of precedence.
#[test]
fn paths_in_variables_are_expanded() {
    let user = User::at("http://127.0.0.1:1");
    let home = user.home.path().display().to_string();
    for (variables, place) in [
        (&[("HF_HOME", "~/hf")][..], "hf/hub"),
        (&[("HF_HOME", "$HOME/hf")], "hf/hub"),
        (&[("HF_HOME", "${HOME}/$NAME"), ("NAME", "x")], "x/hub"),
        (&[("HF_HUB_CACHE", "~/a"), ("HUGGINGFACE_HUB_CACHE", "~/b"), ("HF_HOME", "~/c")], "a"),
        (&[("HUGGINGFACE_HUB_CACHE", "$HOME/b"), ("HF_HOME", "~/c")], "b"),
        (&[("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "~/c")], "c/hub"),
        (&[("XDG_CACHE_HOME", "~/x")], "x/huggingface/hub"),
    ] {
        let mut command = user.sconce(&["embed", "--offline", "--model", MODEL, TEXT]);
        command.env_remove("HF_HOME").envs(variables.iter().copied()).current_dir(user.home.path());
        let place = format!("in the cache at {home}/{place}, and offline mode");
        assert_fails(&output(&mut command), 1, &[&place]);
    }
    let mut command = user.sconce(&["embed", "--offline", "--model", MODEL, TEXT]);
    command.env("HF_HOME", "~no-such-user/hf").current_dir(user.home.path());
    assert_fails(&output(&mut command), 1, &["~no-such-user/hf", "no user of that name", "HF_HOME"]);
    assert_eq!(tree(user.home.path()), [""; 0], "no directory with the name ~");
}

/// The directory of packed weights and digests.
#[test]
#[cfg(unix)]
fn the_path_of_the_own_cache_is_expanded() {
    let user = User::at("http://127.0.0.1:1");
    let model = fixture("bert-tiny").display().to_string();
    let mut command = user.sconce(&["embed", "--model", &model, TEXT]);
    command.env("SCONCE_CACHE", "~/own").current_dir(user.home.path());
    assert!(output(&mut command).status.success());
    assert!(
        tree(user.home.path()).iter().all(|path| path.starts_with("own/")),
        "{:?}",
        tree(user.home.path())
    );
}

/// As `get_token` of `huggingface_hub`.
#[test]
fn tokens_are_read_as_by_huggingface_hub() {
    let hub = hub_with(|site| site.token = Some("hf_right".into()));
    for (variables, is_sent) in [
        (&[("HUGGING_FACE_HUB_TOKEN", "hf_right")][..], true),
        (&[("HF_TOKEN", "hf_right"), ("HUGGING_FACE_HUB_TOKEN", "hf_wrong")], true),
        (&[("HF_TOKEN", ""), ("HUGGING_FACE_HUB_TOKEN", "hf_right")], true),
        (&[("HF_TOKEN", "\r\n"), ("HF_TOKEN_PATH", "~/token")], true),
        (&[("HF_TOKEN_PATH", "$HOME/token")], true),
        (&[("HF_TOKEN", "hf_ri\r\nght")], true),
        (&[("HF_TOKEN", "hf_right"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")], false),
        (&[("HF_TOKEN", "hf_right"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "0")], true),
    ] {
        let user = User::of(&hub);
        fs::write(user.home.path().join("token"), "hf_right\n").expect("a file");
        let output = download(&user, variables);
        assert_eq!(output.status.success(), is_sent, "{variables:?}: {}", stderr(&output));
    }
}

#[test]
fn the_older_variable_of_offline_mode_counts_without_the_other() {
    let hub = hub();
    for (variables, is_offline) in [
        (&[("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1")][..], false),
        (&[("HF_HUB_OFFLINE", ""), ("TRANSFORMERS_OFFLINE", "1")], true),
        (&[("HF_HUB_OFFLINE", "Yes"), ("TRANSFORMERS_OFFLINE", "0")], true),
        (&[("HF_HUB_OFFLINE", "2")], false),
    ] {
        let output = download(&User::of(&hub), variables);
        assert_eq!(output.status.success(), !is_offline, "{variables:?}: {}", stderr(&output));
    }
}

#[test]
fn a_timeout_that_is_no_number_is_named() {
    let hub = hub();
    let user = User::of(&hub);
    for value in ["soon", "-1", "NaN"] {
        let output = download(&user, &[("HF_HUB_DOWNLOAD_TIMEOUT", value)]);
        assert_fails(&output, 1, &["HF_HUB_DOWNLOAD_TIMEOUT", value, "no number of seconds"]);
    }
    // 0 is the default, as in huggingface_hub.
    assert_downloaded(&download(&user, &[("HF_HUB_DOWNLOAD_TIMEOUT", "0")]));
    // It is not needed if the model is in the cache.
    assert_downloaded(&download(&user, &[("HF_HUB_DOWNLOAD_TIMEOUT", "soon")]));
}

#[test]
fn files_are_copies_without_symbolic_links() {
    let hub = hub();
    let user = User::of(&hub);
    assert_downloaded(&download(&user, &[("HF_HUB_DISABLE_SYMLINKS", "1")]));
    let paths = [WEIGHTS, "1_Pooling/config.json"].map(|name| user.snapshot().join(name));
    assert!(paths.iter().all(|path| path.is_file() && !path.is_symlink()));
    assert_vector(&user.run(&["embed", "--offline", "--model", MODEL, TEXT]));
}

/// How `no_proxy` is read has a table of its own, in `src/hub/proxy.rs`.
#[test]
fn a_proxy_is_used_unless_its_list_of_exceptions_has_the_host() {
    let hub = hub();
    let user = User::of(&hub);
    // Nothing listens there.
    let dead = "http://me:pa55word@127.0.0.1:1";
    for variable in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        let failed = download(&user, &[(variable, dead)]);
        assert_fails(&failed, 1, &[MODEL, "cannot be reached", &format!("through the proxy of {variable}")]);
        assert!(!stderr(&failed).contains("pa55word"), "{}", stderr(&failed));
        let malformed = download(&user, &[(variable, "me:pa55word@ a b")]);
        assert_fails(&malformed, 1, &[MODEL, variable, "is not the URL of a proxy"]);
        assert!(!stderr(&malformed).contains("pa55word"), "{}", stderr(&malformed));
    }
    for (name, value) in [
        ("NO_PROXY", "other.example, 127.0.0.1"),
        ("no_proxy", "127.0.0.0/8"),
        ("NO_PROXY", "*"),
        ("HTTPS_PROXY", dead),
        ("http_proxy", ""),
    ] {
        let user = User::of(&hub);
        let proxy = if name == "HTTPS_PROXY" { ("SSL_PROXY", dead) } else { ("HTTP_PROXY", dead) };
        assert_downloaded(&download(&user, &[proxy, (name, value)]));
    }
}

#[test]
fn certificates_of_an_own_authority_are_named_by_variables() {
    let hub = hub_of_small_files();
    let url = encrypted(&hub);
    let user = User::at(&url);
    let folder = user.home.path().join("authorities");
    fs::create_dir_all(folder.join("empty")).expect("a folder");
    fs::copy(fixture("tls/ca.pem"), folder.join("ca.pem")).expect("a copy");
    fs::write(folder.join("notes.txt"), "no certificate").expect("a file");
    let at = |name: &str| folder.join(name).display().to_string();
    let (file, all) = (at("ca.pem"), folder.display().to_string());
    for (variable, value) in [
        ("SSL_CERT_FILE", &file),
        ("SSL_CERT_DIR", &all),
        ("SSL_CERT_DIR", &format!("{all}:{all}")),
        ("REQUESTS_CA_BUNDLE", &file),
        ("REQUESTS_CA_BUNDLE", &all),
        ("CURL_CA_BUNDLE", &file),
    ] {
        let user = User::at(&url);
        assert_downloaded(&download(&user, &[(variable, value)]));
        // A model in the cache needs no certificate.
        assert_downloaded(&download(&user, &[(variable, "/nowhere")]));
    }
    // The authorities of several variables are known together.
    let other = fixture("tls/server.pem").display().to_string();
    assert_downloaded(&download(&User::at(&url), &[("SSL_CERT_FILE", &other), ("CURL_CA_BUNDLE", &file)]));

    let unknown = download(&user, &[]);
    assert_fails(
        &unknown,
        1,
        &[MODEL, "the certificate of localhost", "not trusted", "set SSL_CERT_FILE", "PEM"],
    );
    let unlisted = download(&user, &[("REQUESTS_CA_BUNDLE", &other)]);
    assert_fails(&unlisted, 1, &[MODEL, "not in REQUESTS_CA_BUNDLE", "add the certificate"]);
    for output in [unknown, unlisted] {
        assert!(!stderr(&output).contains("UnknownIssuer"), "{}", stderr(&output));
    }
    let address = User::at(&url.replace("localhost", "127.0.0.1"));
    let misnamed = download(&address, &[("SSL_CERT_FILE", &file)]);
    assert_fails(&misnamed, 1, &["the certificate of 127.0.0.1", "another host name", "HF_ENDPOINT"]);
    for variable in ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"] {
        for (value, part) in [
            (at("missing"), "cannot be read"),
            (at("empty"), "has no certificate in PEM form"),
            (at("notes.txt"), if variable == "SSL_CERT_DIR" { "" } else { "has no certificate in PEM form" }),
        ] {
            let output = download(&user, &[(variable, &value)]);
            assert_fails(&output, 1, &[MODEL, variable, &value, part, "PEM form"]);
        }
    }
    // They are read for encrypted connections only.
    assert_downloaded(&download(&User::of(&hub), &[("SSL_CERT_FILE", "/nowhere")]));
}

/// The tiny BERT under the name of another organization.
fn hub_of(model: &str) -> Hub {
    hub_with(|site| site.model = model.into())
}

#[test]
fn a_name_without_an_organization_is_that_of_sentence_transformers() {
    for id in ["sentence-transformers/bert-mini", "cross-encoder/bert-mini", "bert-mini"] {
        let hub = hub_of(id);
        let user = User::of(&hub);
        assert_vector(&user.run(&["embed", "--model", "bert-mini", TEXT]));
        let folder = format!("models--{}", id.replace('/', "--"));
        assert!(user.cache().join(&folder).join("refs/main").is_file(), "{folder}");
        hub.requests();
        let stats = user.home.path().join("stats.json").display().to_string();
        assert_vector(&user.run(&["embed", "--offline", "--model", "bert-mini", "--stats", &stats, TEXT]));
        assert_eq!(hub.requests().len(), 0);
        let stats: Value = serde_json::from_slice(&fs::read(stats).expect("stats")).expect("JSON");
        assert_eq!(stats["model"], id);
        let path = stdout(&user.run(&["download", "bert-mini"]));
        assert!(Path::new(path.trim()).ends_with(format!("{folder}/snapshots/{COMMIT}")), "{path}");
    }
}

#[test]
fn a_slip_is_answered_with_the_ids_in_the_cache() {
    let mut hub = hub_of("sentence-transformers/bert-mini");
    let user = User::of(&hub);
    assert_vector(&user.run(&["embed", "--model", "bert-mini", TEXT]));
    fs::create_dir_all(user.cache().join("models--org--another-model/snapshots")).expect("a folder");
    let listed = "check the id (the cache has sentence-transformers/bert-mini, org/another-model)";
    let slips = ["sentence-transformer/bert-mini", "sentence-transformers/bert-mimi", "bert-minni"];
    for slip in slips {
        let not_found = user.run(&["embed", "--model", slip, TEXT]);
        assert_fails(&not_found, 1, &[slip, &hub.url, "not found", listed]);
        let offline = user.run(&["embed", "--offline", "--model", slip, TEXT]);
        assert_fails(&offline, 1, &[slip, listed, "sconce download"]);
    }
    hub.site().token = Some("hf_right".into());
    assert_fails(&user.run(&["embed", "--model", slips[0], TEXT]), 1, &[slips[0], "401", listed]);
    let url = hub.url.clone();
    hub.stop();
    for slip in slips {
        let unreachable = user.run(&["embed", "--model", slip, TEXT]);
        assert_fails(&unreachable, 1, &[slip, listed, "if it is right", &url, "cannot be reached"]);
    }
    // No slip: the network comes first.
    let unreachable = user.run(&["embed", "--model", "intfloat/e5-small", TEXT]);
    assert_fails(
        &unreachable,
        1,
        &["in the cache at", ", and the hub at", "cannot be reached", "org/another-model"],
    );
}

#[test]
fn without_a_network_the_place_of_a_copy_is_named() {
    let user = User::at("http://127.0.0.1:1");
    let cache = user.cache().display().to_string();
    let place = format!(
        "copy the directory models--sconce-tests--bert-tiny from the cache of another machine into {cache}"
    );
    assert_fails(
        &user.run(&["embed", "--offline", "--model", MODEL, TEXT]),
        1,
        &[MODEL, &place, "--model DIR"],
    );
    assert_fails(&user.embed(), 1, &[MODEL, &place, "--model DIR"]);
    // The copy is used.
    let hub = hub();
    let other = User::of(&hub);
    assert_downloaded(&other.download());
    fs::create_dir_all(user.cache()).expect("a folder");
    fs::rename(other.folder(), user.folder()).expect("the directory moves");
    assert_vector(&user.run(&["embed", "--offline", "--model", MODEL, TEXT]));
}

/// The default model is an embedding model.
#[test]
fn commands_that_need_a_head_name_a_model_that_has_one() {
    let user = User::at("http://127.0.0.1:1");
    let model = fixture("bert-tiny").display().to_string();
    for (command, example) in [
        (&["tag"][..], "dslim/bert-base-NER"),
        (&["fill"], "google-bert/bert-base-uncased"),
        (&["classify"], "distilbert/distilbert-base-uncased-finetuned-sst-2-english"),
        (&["answer", "--question", "what?"], "deepset/roberta-base-squad2"),
    ] {
        let output = user.run(&[command, &["--model", &model, "a [MASK]"]].concat());
        assert_fails(&output, 1, &["is an embedding model", &format!("such as --model {example}")]);
        let models = fs::read_to_string(fixture("../../docs/models.md")).expect("a page");
        assert!(models.contains(example), "{example} is one of the models of the documentation");
    }
}
