// The official client for Node against a server: node openai_node.mjs URL; one line of JSON with what it got.
// NODE_PATH is a folder in which `npm install openai` was run, and its node_modules.

import { createRequire } from "node:module";
import { join } from "node:path";

const { default: OpenAI, AuthenticationError, BadRequestError, NotFoundError } = createRequire(join(process.env.NODE_PATH, "x"))("openai");
const [url] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "secret", maxRetries: 0, timeout: 30000 });
const user = { role: "user", content: "hello" };
const fields = { model: "tiny/model", messages: [user] };
const tools = [{ type: "function", function: { name: "f", parameters: { type: "object", properties: { city: { type: "string" } } } } }];
const got = {};

got.models = (await client.models.list()).data.map((model) => model.id);
got.whole = await client.chat.completions.create({ ...fields, tools });

got.streamed = { content: "", calls: [], reason: null, usage: null };
const stream = await client.chat.completions.create({ ...fields, tools, stream: true, stream_options: { include_usage: true } });
for await (const { choices, usage } of stream) {
  const [choice] = choices;
  got.streamed.content += choice?.delta.content ?? "";
  for (const call of choice?.delta.tool_calls ?? []) {
    const made = (got.streamed.calls[call.index] ??= { name: "", arguments: "" });
    made.name += call.function?.name ?? "";
    made.arguments += call.function?.arguments ?? "";
  }
  got.streamed.reason ??= choice?.finish_reason ?? null;
  got.streamed.usage ??= usage ?? null;
}

// The client's own reader of streams, which checks what follows what.
const helper = client.chat.completions.stream({ ...fields, tools });
got.helper = (await helper.finalChatCompletion()).choices[0].message;

const events = [];
let text = "";
for await (const event of await client.responses.create({ model: "tiny/model", input: "hello", stream: true })) {
  events.push(event.type);
  if (event.type === "response.output_text.delta") text += event.delta;
}
got.responses = { first: events[0], last: events.at(-1), text };
got.completion = (await client.completions.create({ model: "tiny/model", prompt: "hello", max_tokens: 3 })).choices[0];

const failed = async (call, kind) => {
  try {
    await call();
    return "no error";
  } catch (error) {
    return error instanceof kind ? error.status : String(error);
  }
};
const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
got.errors = [
  await failed(() => stranger.models.list(), AuthenticationError),
  await failed(() => client.chat.completions.create({ ...fields, model: "other" }), NotFoundError),
  await failed(() => client.chat.completions.create({ ...fields, temperature: 9 }), BadRequestError),
];

const leaving = await client.chat.completions.create({ ...fields, stream: true });
for await (const _ of leaving) break; // cancels the request
console.log(JSON.stringify(got));
