//! Loads models and encodes texts, for all types of the library: the only file that knows how tasks are run.

use std::sync::{Arc, Mutex, PoisonError};

use rayon::ThreadPool;

use super::error::{Error, ErrorKind};
use super::model::Model;
use crate::error::UsageError;
use crate::model::modules::Role;
use crate::model::{NoSuchModel, NotDownloaded, is_revision};
use crate::named::Named;
use crate::nn::{Backend, Isa};
use crate::output::{Content, ContentType, SparseVector, VectorValues};
use crate::pipeline::{Task, TaskRow, TokenizeError};
use crate::sys::console::Console;
use crate::sys::threads::compute_pool;
use crate::task::{
    HeadMemory, Loaded, ModelOptions, ModelTask, OnLong, TextEncoder, TextError, TextModel, TextVector,
    VectorOptions, embed_texts,
};
use crate::text::TokenizedText;

/// A function of `task` that loads a model.
pub(super) type Load = fn(&ModelOptions, &Console) -> anyhow::Result<Loaded>;

/// A task with the threads that run it.
pub(super) struct Engine<T> {
    task: Arc<T>,
    pool: Arc<ThreadPool>,
}

/// What a text has become.
pub(super) struct Row {
    /// A vector, a score or labels.
    pub content: Content,
    /// Encoded tokens, including special tokens.
    pub tokens: usize,
    /// Tokens that truncation removed.
    pub truncated_tokens: usize,
}

/// What a model was opened with.
pub(super) struct Context {
    /// The warnings of the command line.
    pub warnings: Vec<String>,
    pool: Arc<ThreadPool>,
}

/// Loads a model, of which `set_up` makes something.
///
/// # Errors
/// If there is no such model, it cannot be loaded, or a choice contradicts it.
pub(super) fn open<T: Send>(
    model: &Model,
    load: Load,
    set_up: impl FnOnce(Loaded, &Console) -> anyhow::Result<T> + Send,
) -> Result<(T, Context), Error> {
    check(model)?;
    let pool = pool(model.threads)?;
    let console = Console::silent();
    let made = pool.install(|| load(&model.options, &console).and_then(|loaded| set_up(loaded, &console)));
    let made = made.map_err(|error| of_load(model, &error))?;
    Ok((made, Context { warnings: console.take_warnings(), pool }))
}

/// Refuses what the command line refuses before it loads a model, and what it cannot do here.
fn check(model: &Model) -> Result<(), Error> {
    let refuse = |message: &str| Err(Error::new(ErrorKind::InvalidOption, &message));
    match model {
        Model { on_long: OnLong::Skip, .. } => refuse(
            "`on_long` skip leaves out texts, but a result has an entry for each text; choose error, truncate or mean",
        ),
        Model { threads: Some(0), .. } => refuse("`threads` is 0; pass a number from 1 on"),
        _ if model.options.max_length == Some(0) => refuse("`max_length` is 0; pass a number from 1 on"),
        _ if !is_revision(&model.options.source.revision) => {
            refuse("`revision` is not a branch, a tag or a commit; pass one, such as main")
        }
        _ => Ok(()),
    }
}

/// The threads that compute: one pool of the process, or with `threads` one of a model's own.
///
/// # Errors
/// If the system refuses the threads, or `SCONCE_ISA` names an instruction set that the processor does not have.
pub(super) fn pool(threads: Option<usize>) -> Result<Arc<ThreadPool>, Error> {
    static SHARED: Mutex<Option<Arc<ThreadPool>>> = Mutex::new(None);
    Isa::check().map_err(|message| Error::new(ErrorKind::InvalidOption, &message))?;
    let start = || match compute_pool(threads) {
        Ok(pool) => Ok(Arc::new(pool)),
        Err(error) => Err(Error::new(ErrorKind::Backend, &error)),
    };
    if threads.is_some() {
        return start();
    }
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*shared {
        Some(pool) => Ok(pool.clone()),
        None => Ok(shared.insert(start()?).clone()),
    }
}

impl<T: ModelTask> Engine<T> {
    /// A task that was made when a model was opened.
    pub(super) fn new(task: T, context: &Context) -> Self {
        Engine { task: Arc::new(task), pool: context.pool.clone() }
    }

    /// The task.
    pub(super) fn task(&self) -> &T {
        &self.task
    }

    /// What each text becomes, in the order of the texts; with `query`, each is the pair of that query and a text. The bits are those of
    /// the command line, whatever the number and the order of the texts.
    ///
    /// # Errors
    /// For the first text that cannot be encoded, is too long or becomes something that is not finite; if the device fails.
    pub(super) fn encode(&self, texts: &[&str], query: Option<&str>) -> Result<Vec<Row>, Error> {
        let call = Call { task: self.task.clone(), query: query.map(str::to_owned) };
        let encoded = self.pool.install(|| {
            let is_finite = |row: &TaskRow| row.is_finite;
            embed_texts(&call, texts, is_finite, |batch, batch_tokens, worker| {
                let batch: Vec<TokenizedText> = batch.iter().map(|text| (*text).clone()).collect();
                // Without chunks and with one query, a text has one row.
                Ok(call.run(&batch, batch_tokens, worker)?.into_iter().flatten().collect())
            })
        });
        let encoded = encoded.map_err(|error| of_encode(&call, texts, &error))?;
        let counts = encoded.tokens.into_iter().zip(encoded.truncated_tokens);
        let rows = encoded.vectors.into_iter().zip(counts);
        Ok(rows
            .map(|(row, (tokens, truncated_tokens))| Row { content: row.content, tokens, truncated_tokens })
            .collect())
    }
}

/// The texts of one call: each alone, or as a pair with a query.
struct Call<T> {
    task: Arc<T>,
    query: Option<String>,
}

impl<T: ModelTask> Task for Call<T> {
    fn tokenize(&self, text: &str, _pair: Option<&str>) -> Result<TokenizedText, TokenizeError> {
        self.task.tokenize(text, self.query.as_deref())
    }

    fn run(
        &self,
        texts: &[TokenizedText],
        batch_tokens: usize,
        worker: usize,
    ) -> anyhow::Result<Vec<Vec<TaskRow>>> {
        self.task.run(texts, batch_tokens, worker)
    }

    fn on_workers_start(&self) {
        self.task.on_workers_start();
    }
}

impl<T: ModelTask> ModelTask for Call<T> {
    fn model(&self) -> &TextModel {
        self.task.model()
    }

    fn content(&self) -> ContentType {
        self.task.content()
    }

    fn vector_bytes(&self) -> usize {
        self.task.vector_bytes()
    }

    fn head_memory(&self) -> HeadMemory {
        self.task.head_memory()
    }
}

/// A model that turns texts into vectors, and what encodes queries, if the model's files treat them in another way than other texts.
pub(super) struct TextEngine {
    own: Arc<Engine<TextEncoder>>,
    /// How the model is opened for queries; `None` if they are like other texts.
    for_queries: Option<(Model, VectorOptions, Load)>,
    queries: Mutex<Option<Arc<Engine<TextEncoder>>>>,
}

impl TextEngine {
    /// `encoder` for texts, and how it was opened: in the same way for queries, if `has_queries`.
    pub(super) fn new(
        encoder: TextEncoder,
        has_queries: bool,
        (model, options, load): (&Model, &VectorOptions, Load),
        context: &Context,
    ) -> Self {
        let of_queries = || {
            let mut model = model.clone();
            model.options.only_queries = true;
            (model, VectorOptions { role: Some(Role::Query), ..options.clone() }, load)
        };
        let own = Arc::new(Engine::new(encoder, context));
        TextEngine { own, for_queries: has_queries.then(of_queries), queries: Mutex::default() }
    }

    /// What encodes texts as they were opened for.
    pub(super) fn own(&self) -> &Engine<TextEncoder> {
        &self.own
    }

    /// What encodes queries. A model that treats them in another way is opened once more for the first of them.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(super) fn queries(&self) -> Result<Arc<Engine<TextEncoder>>, Error> {
        let Some((model, options, load)) = &self.for_queries else { return Ok(self.own.clone()) };
        let mut queries = self.queries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queries) = &*queries {
            return Ok(queries.clone());
        }
        let (encoder, _) = open(model, *load, |loaded, console| TextEncoder::new(loaded, options, console))?;
        let engine = Arc::new(Engine { task: Arc::new(encoder), pool: self.own.pool.clone() });
        Ok(queries.insert(engine).clone())
    }
}

/// Whether a model treats queries in another way than texts of `role`, and of no role.
pub(super) fn has_queries(loaded: &Loaded, role: Option<Role>) -> bool {
    let modules = &loaded.modules;
    let has_own_files = modules.multi_vector.is_some()
        || loaded.static_queries.is_some()
        || modules.role_lengths.iter().any(Option::is_some)
        || modules.prompts.get(Role::Query.name()).is_some();
    match role {
        Some(Role::Query) => false,
        Some(Role::Document) => has_own_files || !modules.prompts.of_role(Role::Document).1.is_empty(),
        None => has_own_files,
    }
}

/// The vector of a row: dense, or those of its tokens, concatenated.
pub(super) fn dense(content: Content) -> Vec<f32> {
    match content {
        Content::Vector(stored) => match stored.values {
            VectorValues::F32(values) => values,
            VectorValues::F16(_) | VectorValues::Int8(_) => unreachable!("vectors are asked for in f32"),
        },
        _ => unreachable!("the task gives vectors"),
    }
}

/// The sparse vector of a row.
pub(super) fn sparse(content: Content) -> SparseVector {
    match content {
        Content::Sparse(vector) => *vector,
        _ => unreachable!("the task gives sparse vectors"),
    }
}

/// The vector of a row of an encoder, whatever it is.
pub(super) fn text_vector(content: Content) -> TextVector {
    match content {
        Content::Sparse(vector) => TextVector::Sparse(*vector),
        content => TextVector::Dense(dense(content)),
    }
}

/// The error of a model that cannot be opened.
fn of_load(model: &Model, error: &anyhow::Error) -> Error {
    let has_no_device = || Backend::open(&model.options.device, model.options.compute_dtype).is_err();
    let kind = match () {
        () if error.is::<UsageError>() => ErrorKind::InvalidOption,
        () if error.is::<NoSuchModel>() => ErrorKind::ModelNotFound,
        () if error.is::<NotDownloaded>() => ErrorKind::Download,
        () if has_no_device() => ErrorKind::Backend,
        () => ErrorKind::InvalidModel,
    };
    Error::new(kind, &format!("{error:#}"))
}

/// The error of texts that cannot be encoded.
fn of_encode(call: &impl ModelTask, texts: &[&str], error: &anyhow::Error) -> Error {
    let kind = match error.downcast_ref() {
        Some(&TextError { index, .. }) => match call.tokenize(texts[index], None) {
            Err(TokenizeError::TooLong { tokens, .. }) => {
                ErrorKind::TooLong { index, tokens, limit: call.model().tokenizer.max_length() }
            }
            Err(TokenizeError::Failed(_) | TokenizeError::NoTokens) => ErrorKind::InvalidText { index },
            Ok(_) => ErrorKind::NotFinite { index },
        },
        None if error.is::<UsageError>() => ErrorKind::InvalidOption,
        None => ErrorKind::Backend,
    };
    Error::new(kind, &format!("{error:#}"))
}
