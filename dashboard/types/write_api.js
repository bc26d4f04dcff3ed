// `node write_api.js OPENAPI_JSON FILE`: write TypeScript types of the API's bodies and answers.
import { readFileSync, writeFileSync } from "node:fs";

const [source, target] = process.argv.slice(2);
const { paths, components } = JSON.parse(readFileSync(source, "utf8"));

const nameOf = (reference) => reference.split("/").at(-1);

function typeOf(schema) {
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  switch (schema.type) {
    case "string":
      return schema.format === "binary" ? "Blob" : "string";
    case "integer":
    case "number":
      return "number";
    case "boolean":
    case "null":
      return schema.type;
    case "array":
      return `(${typeOf(schema.items ?? {})})[]`;
    case "object":
      return typeOfObject(schema);
    default:
      return "any"; // a schema that says nothing
  }
}

function typeOfObject({ properties, required = [], additionalProperties: rest }) {
  if (!properties) return `{ [key: string]: ${typeOf(typeof rest === "object" ? rest : {})} }`;
  const fields = Object.entries(properties).map(([name, schema]) => {
    const about = schema.description ? `/** ${schema.description.replaceAll("*/", "* /")} */ ` : "";
    const mark = required.includes(name) ? "" : "?";
    return `${about}${JSON.stringify(name)}${mark}: ${typeOf(schema)};`;
  });
  return `{\n  ${fields.join("\n  ")}\n}`;
}

const jsonOf = (holder) => holder?.content?.["application/json"]?.schema;

// "GET /v1/jobs/{job_id}" -> what it answers, and what it takes.
const answers = [];
const bodies = [];
for (const [path, operations] of Object.entries(paths)) {
  for (const [method, operation] of Object.entries(operations)) {
    const name = JSON.stringify(`${method.toUpperCase()} ${path}`);
    const success = Object.entries(operation.responses).find(([status]) => status.startsWith("2"));
    const answer = jsonOf(success?.[1]);
    const body = jsonOf(operation.requestBody);
    answers.push(`${name}: ${answer ? typeOf(answer) : "{}"};`);
    if (body) bodies.push(`${name}: ${typeOf(body)};`);
  }
}

const schemas = Object.entries(components.schemas).map(
  ([name, schema]) => `export type ${name} = ${typeOf(schema)};`,
);
writeFileSync(
  target,
  [
    ...schemas,
    `export interface Answers {\n  ${answers.join("\n  ")}\n}`,
    `export interface Bodies {\n  ${bodies.join("\n  ")}\n}`,
    "",
  ].join("\n"),
);
