// An OpenID Connect issuer for tests: oidc-provider with one client, which gets JWT access
// tokens for the audience "shoal" by its credentials.
//
//   node issuer.mjs PORT KEYS.json
//
// KEYS.json is a JSON Web Key Set with private keys. The first signs.
import fs from 'node:fs';
import { Provider } from 'oidc-provider';

const [port, keys] = process.argv.slice(2);
const url = `http://127.0.0.1:${port}`;
const provider = new Provider(url, {
  jwks: JSON.parse(fs.readFileSync(keys, 'utf8')),
  clients: [{ client_id: 'web', client_secret: 'secret', id_token_signed_response_alg: 'ES256', grant_types: ['client_credentials'], redirect_uris: [], response_types: [] }],
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: false },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => 'urn:shoal',
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        scope: '', audience: 'shoal', accessTokenTTL: 300, accessTokenFormat: 'jwt', jwt: { sign: { alg: 'ES256' } },
      }),
    },
  },
});
provider.listen(Number(port), '127.0.0.1');
