// What JavaScript clients make of an endpoint: each whole, streamed, with a tool, and given up.
//
//     node clients.mjs http://127.0.0.1:8080/v1
//
// Prints one JSON document; beside it lies what npm has installed.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";

const baseURL = process.argv[2];
const question = "Tell me a story.";
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 8 } },
  required: ["name"],
  additionalProperties: false,
};
const endless = { logit_bias: { 2: -100 }, max_tokens: 900 };

async function ofOpenAI() {
  const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
  const asked = {
    model: "toy", messages: [{ role: "user", content: question }], temperature: 0, max_tokens: 24,
  };
  const whole = await client.chat.completions.create(asked);
  let streamed = "";
  let usage = null;
  const parts = { ...asked, stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create(parts)) {
    streamed += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  const tools = [{ type: "function", function: { name: "person", parameters: schema } }];
  const calling = { ...asked, max_tokens: 200, tools, tool_choice: "required" };
  const runner = client.chat.completions.stream({ ...calling, parallel_tool_calls: false });
  const called = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0].function;
  const stream = await client.chat.completions.create({ ...asked, ...endless, stream: true });
  let chunks = 0;
  for await (const _ of stream) {
    if (++chunks === 4) stream.controller.abort();
  }
  return { whole: whole.choices[0].message.content, streamed, usage, called, chunks };
}

async function ofAiSdk() {
  const model = createOpenAICompatible({ name: "localspec", baseURL })("toy");
  const asked = { model, prompt: question, temperature: 0, maxOutputTokens: 24, maxRetries: 0 };
  const whole = await generateText(asked);
  let streamed = "";
  for await (const piece of streamText(asked).textStream) streamed += piece;
  const person = tool({ inputSchema: jsonSchema(schema) });
  const calling = { ...asked, maxOutputTokens: 200, tools: { person }, toolChoice: "required" };
  const [call] = await streamText(calling).toolCalls;
  const control = new AbortController();
  let chunks = 0;
  const given = { ...asked, maxOutputTokens: 900, abortSignal: control.signal };
  for await (const _ of streamText(given).textStream) {
    if (++chunks === 4) control.abort();
  }
  const called = { name: call.toolName, arguments: JSON.stringify(call.input) };
  return { whole: whole.text, streamed, called, chunks };
}

console.log(JSON.stringify({ openai: await ofOpenAI(), sdk: await ofAiSdk() }));
