// The npm clients of `clients.py`, which starts this script and checks what it prints: a line of JSON for each client, with what it
// received, as {"client", "embed", "dimensions", "labels", …} or {"client", "error"}.
//
//     node clients.mjs '{"url", "labels_url", "model", "texts", "dimensions"}'
import { createRequire } from "node:module";
import { join } from "node:path";

// Modules are those of the current directory, not of the directory of this script.
const require = createRequire(join(process.cwd(), "clients.mjs"));
const { url, labels_url, model, texts, dimensions } = JSON.parse(process.argv[2]);

async function openai() {
    const { OpenAI } = require("openai");
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
    const vectors = (answer) => answer.data.map((row) => row.embedding);
    const list = await client.models.list();
    return {
        embed: vectors(await client.embeddings.create({ model, input: texts })),
        embed_one: vectors(await client.embeddings.create({ model, input: texts[0] })),
        embed_float: vectors(await client.embeddings.create({ model, input: texts, encoding_format: "float" })),
        dimensions: vectors(await client.embeddings.create({ model, input: texts, dimensions })),
        models: list.data.map((entry) => entry.id),
        model: (await client.models.retrieve(model)).id,
        message: await refusal(client.embeddings.create({ model, input: [] })),
    };
}

async function huggingface() {
    const { InferenceClient } = require("@huggingface/inference");
    const client = new InferenceClient(undefined, { endpointUrl: url });
    const inputs = { source_sentence: texts[0], sentences: texts.slice(1) };
    return {
        embed: await client.featureExtraction({ inputs: texts }),
        embed_one: await client.featureExtraction({ inputs: texts[0] }),
        similarity: await client.sentenceSimilarity({ inputs }),
        labels: await client.endpoint(labels_url).textClassification({ inputs: texts[0] }),
        message: await refusal(client.featureExtraction({ inputs: [] })),
    };
}

async function ollama() {
    const { Ollama } = require("ollama");
    const client = new Ollama({ host: url });
    const embed = async (request) => (await client.embed({ model, ...request })).embeddings;
    return {
        embed: await embed({ input: texts }),
        embed_one: await embed({ input: texts[0] }),
        embed_prompt: (await client.embeddings({ model, prompt: texts[0] })).embedding,
        dimensions: await embed({ input: texts, dimensions }),
        models: (await client.list()).models.map((entry) => entry.name),
        family: (await client.show({ model })).details.family,
        message: await refusal(embed({ input: [] })),
    };
}

/** The message of the error of a request that has to fail. */
async function refusal(answer) {
    try {
        await answer;
    } catch (error) {
        return error.message;
    }
    return "";
}

for (const [client, ask] of Object.entries({ openai, "@huggingface/inference": huggingface, ollama })) {
    let found;
    try {
        found = await ask();
    } catch (error) {
        found = { error: String(error) };
    }
    console.log(JSON.stringify({ client, ...found }));
}
